"""Figures that a plan states of itself: left out, right, or refused with the right one; and what a pin says anyway."""

from typing import Any

import pytest

from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import MeasuredModel, ParallelPlan, PlanRequest, StageMemory, TransformerModel
from kuangchao_operator.layers.strategy.shipped import Planner

GIB = 2**30
WISH: dict[str, Any] = {
    "devices": 16,
    "perPod": 8,
    "shapes": [{"kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "memoryBytes": 80 * GIB, "perNode": 8, "nodes": 4}],
    "model": TransformerModel(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064).wire(),
    "training": {"globalBatch": 64, "sequenceLength": 4096, "precision": "bf16", "optimizer": "adamw"},
    "parallelism": {"taskRules": ["tensor", "sequence", "pipeline", "context"]},
}
PLANNER = Planner()


def asked(**changes: Any) -> PlanRequest:
    pins = WISH["parallelism"] | changes.pop("pins", {})
    return PlanRequest.model_validate(WISH | {"parallelism": pins} | changes)


def made(request: PlanRequest) -> dict[str, Any]:
    found = PLANNER.plan(request)
    assert found.plan is not None, found.infeasible
    return found.plan.wire()


@pytest.fixture(scope="module")
def best() -> dict[str, Any]:
    return made(asked())


@pytest.fixture(scope="module")
def tensor() -> dict[str, Any]:
    """In pods of two, so that pods of a tensor group must share a node."""
    return made(asked(perPod=2, pins={"tensor": 4}))


FALSE: dict[str, tuple[str, Any, str]] = {
    "memory of a device": ("deviceMemoryBytes", 1, str(80 * GIB)),
    "no memory": ("deviceMemoryBytes", 0, str(80 * GIB)),
    "a step": ("stepMicroseconds", 1, "stepMicroseconds"),
    "a bubble": ("bubblePpm", 5, "bubblePpm"),
    "another objective": ("objective", "memory", "time"),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_figure_is_refused_with_the_right_one(name: str, best: dict[str, Any]) -> None:
    field, value, nearest = FALSE[name]
    why = PLANNER.check(ParallelPlan.model_validate(best | {field: value}), asked()).infeasible
    assert why is not None
    assert (why.field, why.value) == (f"plan.{field}", str(value))
    assert why.nearest == str(best.get(nearest, nearest))


def test_figures_of_parts_are_named_with_their_place(best: dict[str, Any]) -> None:
    stages = [*best["memory"]]
    stages[1] = stages[1] | {"reservedBytes": 7}
    why = PLANNER.check(ParallelPlan.model_validate(best | {"memory": stages}), asked()).infeasible
    assert why is not None
    assert (why.field, why.nearest) == ("plan.memory[1].reservedBytes", str(best["memory"][1]["reservedBytes"]))
    step = best["step"] | {"mfuPpm": 999_999}
    why = PLANNER.check(ParallelPlan.model_validate(best | {"step": step}), asked()).infeasible
    assert why is not None
    assert (why.field, why.nearest) == ("plan.step.mfuPpm", str(best["step"]["mfuPpm"]))


def test_memory_of_a_run_of_stages_is_that_of_its_fullest(best: dict[str, Any]) -> None:
    """However somebody divides the stages into runs."""
    whole = ParallelPlan.model_validate(best).memory
    fullest = max(whole, key=lambda stage: (stage.reserved_bytes, -stage.stage))
    run = fullest.replace(stage=0, last_stage=len(whole) - 1)
    assert PLANNER.check(ParallelPlan.model_validate(best).replace(memory=(run,)), asked()).plan is not None
    other = min(whole, key=lambda stage: stage.reserved_bytes).replace(stage=0, last_stage=len(whole) - 1)
    why = PLANNER.check(ParallelPlan.model_validate(best).replace(memory=(other,)), asked()).infeasible
    assert why is not None
    assert (why.field or "").startswith("plan.memory[0].")


LEFT_OUT = ("memory", "stepMicroseconds", "bubblePpm", "step", "placement", "objective", "alternatives", "rejected")


def test_what_is_left_out_is_filled_in(best: dict[str, Any]) -> None:
    """As plans of a hand, and of releases that did not know a member, leave it out."""
    bare = {name: value for name, value in best.items() if name not in LEFT_OUT} | {"memoryChecked": False}
    found = PLANNER.check(ParallelPlan.model_validate(bare | {"requestDigest": "0" * 64}), asked()).plan
    assert found is not None
    assert found.wire() | {"alternatives": best["alternatives"], "rejected": best["rejected"]} == best


def test_words_of_a_plan_are_written_anew(best: dict[str, Any]) -> None:
    stages = [stage | {"arithmetic": ["made up"]} for stage in best["memory"]]
    liar = {"memory": stages, "alternatives": [{"summary": "dp1", "reason": "made up"}]}
    for digest in (best["requestDigest"], "0" * 64):
        found = PLANNER.check(ParallelPlan.model_validate(best | liar | {"requestDigest": digest}), asked()).plan
        assert found is not None
        assert "made up" not in found.canonical().decode()
        assert found.request_digest == best["requestDigest"]


def test_a_plan_of_the_search_comes_back_as_it_is(best: dict[str, Any]) -> None:
    found = PLANNER.check(ParallelPlan.model_validate(best), asked()).plan
    assert found is not None
    assert found.wire() == best


def test_required_placement_follows_from_the_groups(tensor: dict[str, Any]) -> None:
    request = asked(perPod=2, pins={"tensor": 4})
    plan = ParallelPlan.model_validate(tensor)
    assert plan.pods_together == 2
    why = PLANNER.check(ParallelPlan.model_validate(tensor | {"placement": []}), request).infeasible
    assert why is not None
    assert (why.field, why.value) == ("plan.placement", "nothing required")
    assert why.nearest == "required: size 4, stride 1 within island"
    rules = tuple(rule.replace(size=8) if rule.required else rule for rule in plan.placement)
    why = PLANNER.check(plan.replace(placement=rules), request).infeasible
    assert why is not None
    assert why.nearest == "required: size 4, stride 1 within island"
    left_out = {name: value for name, value in tensor.items() if name != "placement"}
    found = PLANNER.check(ParallelPlan.model_validate(left_out), request).plan
    assert found is not None
    assert found.pods_together == 2


def test_figures_that_a_measured_peak_corrected_are_larger_and_no_less() -> None:
    """The estimate is what can be computed anew; a peak that was measured made more of it."""
    request = asked(model=MeasuredModel(parameters=10**9).wire(), devices=8, pins={"taskRules": []})
    first = PLANNER.plan(request).plan
    assert first is not None
    peak = first.memory[0].total_bytes * 5 // 4
    second = PLANNER.replan(first, request.replace(measured_peak_bytes=peak)).plan
    assert second is not None
    assert PLANNER.check(second, request).plan is not None
    less = second.memory[0]
    cut = less.reserved_bytes - less.total_bytes
    small: StageMemory = less.replace(reserved_bytes=cut)
    why = PLANNER.check(second.replace(memory=(small,)), request).infeasible
    assert why is not None
    assert why.field == "plan.memory[0].reservedBytes"


USUAL: tuple[dict[str, Any], ...] = (
    {"pipeline": 1, "stageLayers": [28]},
    {"pipeline": 2, "stageLayers": [14, 14]},
    {"stageLayers": []},
    {"pipeline": 1, "schedule": "1f1b", "virtualStages": 1, "context": 1, "expert": 1},
    {"tensor": 1, "sequence": False},
    {"sharding": "none", "tensor": 4, "pipeline": 4},
    {"recompute": "none", "microBatch": 1},
    {"mode": "Manual", "data": 16, "sharding": "full", "recompute": "full"},
    {"mode": "Manual", "data": 16, "sharding": "full", "recompute": "full", "stageLayers": [28], "pipeline": 1},
    {"objective": "time"},
)


@pytest.mark.parametrize("pins", USUAL, ids=str)
def test_a_pin_of_what_is_usual_contradicts_no_plan_that_has_it(pins: dict[str, Any]) -> None:
    request = asked(pins=pins)
    plan = ParallelPlan.model_validate(made(request))
    assert PLANNER.check(plan, request).infeasible is None


def test_layers_of_stages_may_be_left_to_what_is_usual_and_no_further() -> None:
    plan = ParallelPlan.model_validate(made(asked(pins={"pipeline": 2, "stageLayers": [14, 14]})))
    assert PLANNER.check(plan, asked(pins={"pipeline": 2, "stageLayers": [14, 14]})).plan is not None
    why = PLANNER.check(plan, asked(pins={"pipeline": 2, "stageLayers": [15, 13]})).infeasible
    assert why is not None
    assert (why.field, why.nearest) == ("parallelism.stageLayers", "[15, 13]")


def test_each_objective_stands_in_its_plan() -> None:
    request = asked(pins={"objective": "memory"})
    plan = ParallelPlan.model_validate(made(request))
    assert plan.objective is Objective.MEMORY
    assert PLANNER.check(plan, request).plan is not None
    why = PLANNER.check(plan, asked()).infeasible
    assert why is not None
    assert (why.field, why.nearest) == ("plan.objective", "time")
