"""Plans and their inputs as others read them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.parallel import (
    Locality,
    Objective,
    Overlay,
    OverlayGroups,
    PlacementRule,
    Schedule,
    StepEstimate,
)
from kuangchao_contracts.plan import (
    Axis,
    AxisGroups,
    Optimizer,
    ParallelPlan,
    PlanRequest,
    Precision,
    StageMemory,
    TrainingSpec,
    known_to_older_workers,
)

OLD_PRECISIONS = {"fp32", "bf16", "fp16"}
OLD_OPTIMIZERS = {"sgd", "momentum", "adam", "adamw"}


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("optimizer", Optimizer)
def test_workers_of_0_1_0_are_told_values_that_they_know(precision: Precision, optimizer: Optimizer) -> None:
    asked = TrainingSpec(precision=precision, optimizer=optimizer, steps=7)
    told = known_to_older_workers(asked)
    assert told.precision in OLD_PRECISIONS
    assert told.optimizer in OLD_OPTIMIZERS
    assert told == asked or {precision, optimizer} - OLD_PRECISIONS - OLD_OPTIMIZERS
    assert told.replace(precision=precision, optimizer=optimizer) == asked


STAGE = StageMemory(
    stage=0,
    parameters_bytes=1,
    gradients_bytes=2,
    optimizer_bytes=3,
    activations_bytes=4,
    other_bytes=5,
    total_bytes=15,
    reserved_bytes=16,
)


def plan(**changes: Any) -> ParallelPlan:
    """A data-parallel plan as 0.1.0 made it."""
    return ParallelPlan(
        world_size=8,
        per_pod=2,
        pods=4,
        data=8,
        micro_batch=1,
        accumulation_steps=1,
        global_batch=8,
        groups=(AxisGroups(axis=Axis.DATA, size=8, stride=1),),
        memory_checked=True,
        memory=(STAGE,),
        device_memory_bytes=100,
        request_digest="a" * 64,
    ).replace(**changes)


LATER: dict[str, Any] = {
    "schedule": Schedule.ZERO_BUBBLE_V,
    "stage_layers": (1, 0),
    "expert_tensor": 2,
    "shard_ranks": 4,
    "objective": Objective.MEMORY,
    "step": StepEstimate(step_us=9, compute_us=5, bubble_ppm=1),
    "overlays": (OverlayGroups(axis=Overlay.SHARD, size=4, stride=1),),
    "placement": (PlacementRule(within=Locality.NODE, size=2, stride=1, required=True, reason="tensor"),),
    "memory": (STAGE.replace(last_stage=3),),
}


def test_plans_and_requests_of_0_1_0_keep_their_hashes() -> None:
    request = PlanRequest(devices=1, per_pod=1, shapes=(), training=TrainingSpec())
    assert plan().hash == "b56d93e8b9e52b71611fb2aa9d4bd702d1d04161c7bb08ddce68de25c2ec4be8"
    assert request.content_hash() == "d148d2012549d82a65fb4b8638b0234a2c5fbfc61d1f7ddb514b999636de0ec6"


EXPLAINING = {"objective", "step"}
RELEASED = json.loads(Path("docs/interfaces/0.1.0.json").read_text())["models"]
TIMED: dict[str, Any] = {
    **{member: LATER[member] for member in ("schedule", "objective", "step")},
    "stage_layers": (32,),
    "step_microseconds": 9,
    "overlays": (OverlayGroups(axis=Overlay.EXPERT_DATA, size=8, stride=1),),
    "placement": (PlacementRule(within=Locality.RAIL, size=2, stride=4, required=False, reason="rail"),),
}


def hash_by_0_1_0(made: ParallelPlan) -> str:
    """As a worker of that release computes it: what its models do not have is dropped when it reads."""
    read = {name: value for name, value in made.wire().items() if name in RELEASED["ParallelPlan"]["properties"]}
    known = RELEASED["StageMemory"]["properties"]
    read["memory"] = [{name: value for name, value in stage.items() if name in known} for stage in read["memory"]]
    return hashlib.sha256(canonical_json(read)).hexdigest()


@pytest.mark.parametrize("sizes", [{}, {"sharding": "full"}])
def test_a_timed_data_parallel_plan_has_the_hash_that_a_worker_of_0_1_0_puts_into_a_checkpoint(sizes: Any) -> None:
    made = plan(**TIMED, **sizes)
    assert made.hash == hash_by_0_1_0(made) == plan(step_microseconds=9, **sizes).hash


@pytest.mark.parametrize("member", LATER)
def test_what_ranks_do_counts_for_the_hash_and_why_does_not(member: str) -> None:
    divided = plan(tensor=2, data=4)
    assert (divided.replace(**{member: LATER[member]}).hash == divided.hash) == (member in EXPLAINING)


@pytest.mark.parametrize("member", ["shard_ranks", "expert_tensor", "placement"])
def test_a_data_parallel_plan_that_asks_for_more_is_another(member: str) -> None:
    assert plan(**{member: LATER[member]}).hash != plan().hash


@pytest.mark.parametrize("changes", [{}, LATER], ids=["as in 0.1.0", "with everything"])
def test_a_plan_survives_its_canonical_bytes(changes: dict[str, Any]) -> None:
    made = plan(**changes)
    again = ParallelPlan.model_validate_json(made.canonical())
    assert again == made
    assert (again.hash, again.canonical()) == (made.hash, made.canonical())


def test_a_plan_survives_the_defaults_that_an_api_server_fills_in() -> None:
    filled = json.loads(plan().canonical()) | {"schedule": "1f1b", "expertTensor": 1, "shardRanks": 0}
    assert ParallelPlan.model_validate(filled | {"objective": "time"}).hash == plan().hash


def test_a_rank_has_coordinates_on_the_mesh_and_on_what_lies_over_it() -> None:
    made = plan(overlays=(OverlayGroups(axis=Overlay.EXPERT, size=2, stride=2),))
    assert [made.coordinate(5, axis) for axis in (Axis.DATA, Axis.EXPERT, Overlay.EXPERT, Axis.TENSOR)] == [5, 0, 0, 0]
    assert made.coordinate(6, Axis.EXPERT) == 1


@pytest.mark.parametrize(
    ("per_pod", "rules", "together"),
    [
        (2, (), 1),
        (8, ((Locality.ISLAND, 8, 1, True),), 1),
        (1, ((Locality.ISLAND, 4, 1, True), (Locality.NODE, 4, 2, False)), 4),
        (2, ((Locality.NODE, 4, 2, True), (Locality.RAIL, 4, 8, True)), 4),
        (4, ((Locality.NODE, 6, 1, True),), 3),
    ],
)
def test_pods_that_must_share_a_node(
    per_pod: int, rules: tuple[tuple[Locality, int, int, bool], ...], together: int
) -> None:
    placement = [
        PlacementRule(within=within, size=size, stride=stride, required=required, reason="")
        for within, size, stride, required in rules
    ]
    assert plan(per_pod=per_pod, placement=tuple(placement)).pods_together == together
