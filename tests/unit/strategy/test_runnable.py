"""What a job's plan may use: what workers run for any task, and for tasks with rules what these are for."""

from typing import Any

import pytest

from kuangchao_contracts.plan import (
    DeviceShape,
    Experts,
    Infeasible,
    ParallelPlan,
    PlanOutcome,
    PlanRequest,
    Recompute,
    Sharding,
    TransformerModel,
)
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy.runnable import CARRIED_OUT, NEUTRAL, NOT_BUILT, PLUGGED, on_request
from kuangchao_operator.layers.strategy.shipped import plan

DECODER = TransformerModel(layers=8, hidden=1024, heads=16, kv_heads=8, ffn=4096, vocab=32_000)
LARGE = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128_256)
GPU = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, per_node=8, nodes=1)
DENSE = [TaskRule.TENSOR, TaskRule.SEQUENCE, TaskRule.PIPELINE]


def asked(model: TransformerModel = DECODER, *, plugged: bool = False, batch: int = 16, **pins: Any) -> PlanOutcome:
    training = {"globalBatch": batch, "sequenceLength": 1024, "precision": "bf16"}
    fields = {"devices": 8, "perPod": 8, "shapes": [GPU], "model": model, "training": training, "parallelism": pins}
    return plan(PlanRequest.model_validate(fields | {"plugged": plugged}))


def made(*args: Any, **pins: Any) -> ParallelPlan:
    outcome = asked(*args, **pins)
    assert outcome.plan is not None, outcome.infeasible
    return outcome.plan


def refused(*args: Any, **pins: Any) -> Infeasible:
    outcome = asked(*args, **pins)
    assert outcome.infeasible is not None
    return outcome.infeasible


def test_a_model_that_fits_is_data_parallel_and_told_why() -> None:
    found = made()
    assert found.summary() == "dp8"
    reasons = {one.axis: one.reason for one in found.rejected}
    assert reasons["tensor"] == on_request(TaskRule.TENSOR)
    assert reasons["pipeline"] == reasons["schedule"] == on_request(TaskRule.PIPELINE)
    assert reasons["sharding"].startswith("fits without: ")


def test_a_model_that_does_not_fit_whole_is_sharded_without_any_rules() -> None:
    found = made(LARGE)
    assert (found.summary(), found.sharding) == ("dp8", "full")
    assert refused(LARGE, sharding="none").field == "parallelism.sharding"


@pytest.mark.parametrize(
    ("rules", "used"),
    [
        ([TaskRule.TENSOR], {"tensor"}),
        ([TaskRule.TENSOR, TaskRule.SEQUENCE], {"tensor", "sequence"}),
        ([TaskRule.PIPELINE], {"pipeline"}),
        (DENSE, {"tensor", "sequence", "pipeline"}),
    ],
)
def test_with_rules_the_planner_divides_by_itself_and_in_no_other_way(rules: list[TaskRule], used: set[str]) -> None:
    found = made(LARGE, task_rules=rules, sharding="none", objective="memory")
    wire = found.wire()
    ruled = {"tensor", "pipeline", "sequence", "context", "expert"}
    assert {name for name in ruled if wire[name] != NEUTRAL[name]} == used
    reasons = {one.axis: one.reason for one in found.rejected}
    assert all(reasons[rule] == on_request(rule) for rule in (TaskRule.TENSOR, TaskRule.PIPELINE) if rule not in rules)


def test_a_pin_that_is_not_built_is_told_so_beside_the_refusal_too() -> None:
    why = refused(task_rules=DENSE, schedule="zb-h2", pipeline=4)
    assert {one.axis: one.reason for one in why.rejected}["schedule"] == NOT_BUILT


def test_rules_alone_divide_nothing_that_is_faster_whole() -> None:
    found = made(batch=512, task_rules=DENSE)
    assert found.summary() == "dp8"
    assert next(one.reason for one in found.rejected if one.axis == "tensor").startswith("fits without; ")


def test_what_is_built_for_some_values_is_used_at_no_other() -> None:
    for objective in ("time", "memory"):
        for model in (DECODER, LARGE):
            found = made(model, task_rules=list(TaskRule), objective=objective)
            assert all(
                found.wire().get(name, NEUTRAL[name]) in values for name, values in CARRIED_OUT.items() if values
            )


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        # rules for tensor are not rules for sequence: a worker would refuse most tasks
        ({"tensor": 2}, {"tensor": 2, "sequence": False, "data": 4}),
        ({"tensor": 2, "sequence": True}, {"tensor": 2, "sequence": True}),
        ({"tensor": 2, "task_rules": ["tensor", "sequence"]}, {"tensor": 2, "sequence": True}),
        ({"pipeline": 4}, {"pipeline": 4, "data": 2}),
        ({"sharding": "full"}, {"sharding": "full", "data": 8}),
        ({"pipeline": 2, "schedule": "gpipe", "sharding": "full"}, {"pipeline": 2, "schedule": "gpipe"}),
    ],
)
def test_what_is_pinned_is_planned_and_its_rules_are_taken_to_be_there(
    pins: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = made(**pins)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.sharding == pins.get("sharding", "none")


def test_the_optimizer_alone_is_sharded_where_that_is_pinned() -> None:
    assert made().sharding is Sharding.NONE
    assert made(sharding="optimizer").sharding is Sharding.OPTIMIZER


def test_what_repeats_must_be_known_before_the_planner_recomputes_unasked() -> None:
    more = {"sharding": "full", "objective": "memory"}
    assert made(LARGE, **more).recompute is Recompute.NONE
    assert made(LARGE, task_rules=[TaskRule.PIPELINE], pipeline=1, **more).recompute is Recompute.FULL
    assert made(recompute="selective").recompute is Recompute.SELECTIVE


def test_a_value_that_no_worker_runs_is_refused() -> None:
    unbuilt = {"expert": 2, "recompute": "full", "sharding": "optimizer", "schedule": "zb-h1"}
    pins = {name: value for name, value in unbuilt.items() if value not in (CARRIED_OUT.get(name, ()) or (value,))}
    for name, value in pins.items():
        more = {"pipeline": 2} if name == "schedule" else {}
        assert "not built in the worker yet" in refused(**{name: value}, **more).message


def test_experts_are_divided_beside_tensor_parallelism_and_never_cut() -> None:
    model = DECODER.replace(experts=Experts(count=8, per_token=2, ffn=1024))
    found = made(model, tensor=2, expert=8)
    assert (found.tensor, found.expert, found.expert_tensor, found.sequence) == (2, 8, 1, True)
    assert made(model, tensor=4, expert=2).expert_tensor == 1
    assert refused(model, tensor=2, expert=8, sequence=False).field == "parallelism.sequence"


def test_what_the_worker_does_not_run_together_is_not_planned_and_told() -> None:
    """Interleaved stages in rounds: of 10 micro-batches, four stages would do 2 rounds of 5; of 7, one of 7."""
    pins = {"pipeline": 4, "data": 2, "micro_batch": 1, "schedule": "interleaved", "virtual_stages": 2}
    assert made(batch=20, **pins).accumulation_steps == 10
    why = refused(batch=22, **pins)
    assert "in 2 rounds of equally many micro-batches" in why.message
    found = made(batch=22, pipeline=4, data=2, micro_batch=1)
    assert (found.accumulation_steps, found.schedule in ("interleaved", "zb-h1")) == (11, False)


def test_what_takes_gradients_whole_gets_them_whole() -> None:
    found = made(plugged=True, task_rules=DENSE, objective="memory")
    assert (found.summary(), found.sharding) == ("dp8", "none")
    assert {one.reason for one in found.rejected if one.axis != "objective"} == {PLUGGED}
    assert PLUGGED in refused(plugged=True, tensor=2).message
