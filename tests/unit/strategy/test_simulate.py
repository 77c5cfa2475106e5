"""The step of a plan: times of the planner's own clock, run by its schedule."""

from typing import Any

import pytest

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import (
    DeviceShape,
    MeasuredModel,
    Parallelism,
    ParallelPlan,
    PlanRequest,
    Precision,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.schedule.timeline import Activity
from kuangchao_operator.layers.strategy.shipped import Planner, knowledge
from kuangchao_operator.layers.strategy.simulate import simulate_plan, simulation_json

LLAMA_8B = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
H100 = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, per_node=8, nodes=4)
CPU = DeviceShape(kind="cpu", memory_bytes=16 * 2**30, per_node=4, nodes=1)


def request(shape: DeviceShape = H100, **changes: Any) -> PlanRequest:
    """A request for a whole pool; `changes` are its members."""
    base: dict[str, Any] = {
        "devices": shape.per_node * shape.nodes,
        "per_pod": shape.per_node,
        "shapes": (shape,),
        "model": LLAMA_8B,
        "training": TrainingSpec(global_batch=256, sequence_length=4096, precision=Precision.BF16),
        "what_if": True,
    }
    return PlanRequest(**{**base, **changes})


def planned(asked: PlanRequest) -> ParallelPlan:
    """The plan for it."""
    found = Planner().plan(asked)
    assert found.plan is not None, found.infeasible
    return found.plan


@pytest.mark.parametrize(
    "pins",
    [
        {"pipeline": 4, "tensor": 2, "schedule": Schedule.ONE_F_ONE_B},
        {"pipeline": 4, "tensor": 2, "schedule": Schedule.INTERLEAVED, "virtual_stages": 4},
        {"pipeline": 4, "tensor": 2, "schedule": Schedule.ZERO_BUBBLE_H1},
        {"pipeline": 4, "tensor": 2, "schedule": Schedule.ZERO_BUBBLE_V, "virtual_stages": 2},
        {"pipeline": 1},
    ],
    ids=lambda pins: str(pins.get("schedule", "no pipeline")),
)
def test_the_run_takes_about_as_long_as_the_plan_says(pins: dict[str, Any]) -> None:
    """Two ways to the same figure: closed forms of the bubble, and an event for every pass and transfer."""
    asked = request(parallelism=Parallelism(**pins))
    plan = planned(asked)
    step = simulate_plan(plan, asked, knowledge())
    assert step.timed
    assert step.micro_batches == plan.accumulation_steps
    assert plan.step_microseconds is not None
    assert step.step_us == pytest.approx(plan.step_microseconds, rel=0.05)
    assert step.bubble_ppm == pytest.approx(plan.bubble_ppm, abs=30_000)


def test_a_step_ends_with_what_the_plan_says_of_gradients_and_states() -> None:
    asked = request(parallelism=Parallelism(pipeline=2, tensor=4, schedule=Schedule.ONE_F_ONE_B))
    plan = planned(asked)
    spans = simulate_plan(plan, asked, knowledge()).timeline.spans
    assert plan.step is not None
    ends = {(span.stage, span.activity): span.stop - span.start for span in spans if span.micro_batch < 0}
    assert ends[0, Activity.REDUCTION] == ends[1, Activity.REDUCTION] == plan.step.data_us
    assert ends[0, Activity.OPTIMIZER] == plan.step.optimizer_us
    assert {span.stage for span in spans if span.activity is Activity.ACTIVATIONS} == {0}


def test_processors_accumulate_on_one_stage() -> None:
    small = TransformerModel(layers=2, hidden=64, heads=4, ffn=256, vocab=1000)
    training = TrainingSpec(global_batch=64, sequence_length=32, precision=Precision.FP32)
    asked = request(CPU, model=small, training=training, what_if=False, parallelism=Parallelism(micro_batch=4))
    plan = planned(asked)
    step = simulate_plan(plan, asked, knowledge())
    assert (plan.pipeline, plan.accumulation_steps) == (1, 4)
    passes = [span.activity for span in step.timeline.spans if span.micro_batch >= 0]
    assert passes == [Activity.FORWARD, Activity.BACKWARD] * 4
    assert step.bubble_ppm == 0


@pytest.mark.parametrize("model", [None, MeasuredModel(parameters=1000)], ids=["unknown", "measured"])
def test_without_layers_there_is_an_order_but_no_time(model: MeasuredModel | None) -> None:
    asked = request(CPU, model=model, training=TrainingSpec(global_batch=64), what_if=False)
    step = simulate_plan(planned(asked), asked, knowledge())
    found = simulation_json(step)
    assert not step.timed
    assert found["stepSeconds"] is None
    assert found["stages"] == [{"stage": 0, "busyFraction": 1.0}]
