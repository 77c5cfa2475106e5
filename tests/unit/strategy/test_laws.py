"""Each law: what breaks it, what the user is told, and the nearest legal value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import (
    DeviceShape,
    Experts,
    Infeasible,
    MeasuredModel,
    Parallelism,
    ParallelismMode,
    PlanRequest,
    Recompute,
    Sharding,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy import laws, numbers
from kuangchao_operator.layers.strategy.shipped import plan

SHAPE = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * 2**30, per_node=8, nodes=2)


def request(devices: int = 4, per_pod: int = 1, batch: int = 32, **changes: Any) -> PlanRequest:
    parallelism = changes.pop("parallelism", Parallelism())
    return PlanRequest(
        devices=devices,
        per_pod=per_pod,
        shapes=changes.pop("shapes", (SHAPE,)),
        training=TrainingSpec(global_batch=batch),
        parallelism=parallelism,
        **changes,
    )


def refusal(wish: PlanRequest) -> Infeasible:
    outcome = plan(wish)
    assert outcome.plan is None
    assert outcome.infeasible is not None
    return outcome.infeasible


def test_a_batch_that_does_not_divide_names_the_nearest_two() -> None:
    why = refusal(request(batch=30))
    assert (why.reason, why.field, why.value, why.nearest) == ("Infeasible", "training.globalBatch", "30", "28 or 32")
    assert "devices.count: 3 or 5" in why.message


def test_a_batch_below_the_ranks_has_one_neighbour() -> None:
    assert refusal(request(devices=8, batch=5)).nearest == "8"


NOT_RUN = [("schedule", Schedule.ZERO_BUBBLE_H2)]
FOR_A_TASK = [
    ("context", 2),
    ("expert", 2),
    ("virtual_stages", 2),
    ("recompute", Recompute.FULL),
    ("tensor", 2),
    ("pipeline", 2),
    ("sequence", True),
    ("sharding", Sharding.FULL),
]


@pytest.mark.parametrize(
    ("pin", "value", "managed"),
    [*((*one, True) for one in NOT_RUN), *((*one, False) for one in (*NOT_RUN, *FOR_A_TASK))],
)
def test_an_axis_that_is_not_built_is_refused_not_ignored(pin: str, value: object, managed: bool) -> None:
    why = refusal(request(parallelism=Parallelism.model_validate({pin: value}), managed=managed))
    assert why.reason == "Infeasible"
    assert why.field is not None
    assert why.field.lower() == f"parallelism.{pin.replace('_', '')}"
    assert why.nearest in {"1", "false", "none", "1f1b"}
    assert ("not built in the worker yet" if managed else "only data parallel") in why.message


@pytest.mark.parametrize(
    "pin",
    [
        {"tensor": 1},
        {"sequence": False},
        {"recompute": "none"},
        {"sharding": "none"},
        {"data": 4},
        {"virtualStages": 1},
    ],
)
def test_pins_at_the_one_legal_value_are_fine(pin: dict[str, object]) -> None:
    assert plan(request(parallelism=Parallelism.model_validate(pin))).plan is not None


def test_data_that_is_not_the_device_count_contradicts_it() -> None:
    why = refusal(request(parallelism=Parallelism(data=3)))
    assert (why.reason, why.field, why.nearest) == ("ContradictoryPlan", "parallelism.data", "4")
    assert "parallelism.data=3" in why.message
    assert "devices.count=4" in why.message


def test_manual_means_one_for_what_is_not_given() -> None:
    why = refusal(request(parallelism=Parallelism(mode=ParallelismMode.MANUAL)))
    assert "parallelism.data=1 (Manual" in why.message
    made = plan(request(parallelism=Parallelism(mode=ParallelismMode.MANUAL, data=4))).plan
    assert made is not None
    assert (made.micro_batch, made.accumulation_steps) == (1, 8)


def test_a_micro_batch_that_does_not_divide_names_both_fields() -> None:
    why = refusal(request(parallelism=Parallelism(micro_batch=3)))
    assert (why.reason, why.field, why.nearest) == ("ContradictoryPlan", "parallelism.microBatch", "2 or 4")
    assert "training.globalBatch=32" in why.message


def test_a_micro_batch_above_the_share_of_a_rank() -> None:
    assert refusal(request(parallelism=Parallelism(micro_batch=64))).nearest == "8"


def test_a_pod_must_fit_on_one_node() -> None:
    why = refusal(request(devices=16, per_pod=16))
    assert (why.field, why.value, why.nearest) == ("devices.perPod", "16", "8")
    assert "perPod=16" in why.message
    assert "perNode" in why.message


def test_more_devices_than_the_pool_has() -> None:
    why = refusal(request(devices=32, batch=32))
    assert (why.field, why.value, why.nearest) == ("devices.count", "32", "16")


def test_left_over_devices_of_a_node_do_not_count() -> None:
    """Nodes of 8 hold two pods of 3: 12 of 16 devices."""
    assert laws.capacity(request(devices=15, per_pod=3, batch=30)) == 12
    assert refusal(request(devices=15, per_pod=3, batch=60)).nearest == "12"


def test_small_nodes_do_not_host_large_pods() -> None:
    small = DeviceShape(kind="gpu", model="T4", memory_bytes=16 * 2**30, per_node=2, nodes=50)
    made = plan(request(devices=8, per_pod=4, shapes=(SHAPE, small))).plan
    assert made is not None
    assert made.device_memory_bytes == SHAPE.memory_bytes


def test_whole_pods_only() -> None:
    why = refusal(request(devices=5, per_pod=2, batch=40))
    assert (why.reason, why.field, why.nearest) == ("ContradictoryPlan", "devices.count", "4 or 8")


@pytest.mark.parametrize("precision", ["bf16-pure", "fp16-pure", "fp8"])
def test_a_precision_that_no_executor_can_run_is_refused_with_its_memory(precision: str) -> None:
    wish = request(model=MeasuredModel(parameters=10**6))
    half = wish.replace(training=TrainingSpec(global_batch=32, precision=precision))
    why = refusal(half)
    assert (why.field, why.value, why.nearest) == ("training.precision", precision, "bf16")
    assert why.memory[0].parameters_bytes == 2 * 10**6
    assert plan(half.replace(managed=False)).plan is not None, "a command has its own executor"


def test_fp16_is_planned_as_bf16_is() -> None:
    wish = request(model=MeasuredModel(parameters=10**6))
    planned = [wish.replace(training=TrainingSpec(global_batch=32, precision=p)) for p in ("fp16", "bf16")]
    fp16, bf16 = (plan(one).plan for one in planned)
    assert fp16 is not None and bf16 is not None
    assert fp16.memory[0].total_bytes == bf16.memory[0].total_bytes


def test_an_empty_pool_is_said() -> None:
    why = refusal(request(shapes=()))
    assert "no devices" in why.message
    assert why.nearest is None, "no number of devices is legal"


def test_a_transformer_needs_its_sequence_length_and_whole_heads() -> None:
    model = TransformerModel(layers=1, hidden=64, heads=5, ffn=128, vocab=100)
    assert refusal(request(model=model.replace(heads=4))).field == "training.sequenceLength"
    wish = request(model=model)
    why = refusal(wish.replace(training=wish.training.replace(sequence_length=8)))
    assert (why.reason, why.field, why.nearest) == ("InvalidSpec", "model.heads", "4 or 8")


def test_experts_count_in_a_plans_memory() -> None:
    dense = TransformerModel(layers=2, hidden=64, heads=4, ffn=128, vocab=100)
    wish = request(model=dense)
    wish = wish.replace(training=wish.training.replace(sequence_length=8))
    more = wish.replace(model=dense.replace(experts=Experts(count=64, per_token=2, ffn=128)))
    before, after = (plan(one).plan for one in (wish, more))
    assert before is not None
    assert after is not None
    added = 2 * (63 * 3 * 64 * 128 + 64 * 64)
    assert after.memory[0].parameters_bytes - before.memory[0].parameters_bytes == 4 * added
    assert after.memory[0].total_bytes > before.memory[0].total_bytes + 16 * added


@given(value=st.integers(1, 10_000))
def test_divisors_are_all_and_falling(value: int) -> None:
    assert list(numbers.divisors(value)) == [n for n in range(value, 0, -1) if value % n == 0]


@given(value=st.integers(1, 10_000), base=st.integers(1, 500))
def test_nearest_multiples_enclose_the_value(value: int, base: int) -> None:
    near = numbers.nearest_multiples(value, base)
    assert all(n % base == 0 and n > 0 and abs(n - value) <= base for n in near)
    assert near[-1] > value
