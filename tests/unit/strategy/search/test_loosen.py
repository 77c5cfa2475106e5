"""Where nothing fits with a pin, its nearest value is named that was searched with and does."""

from typing import Any

import pytest

from kuangchao_contracts.plan import DeviceShape, Infeasible, PlanRequest, TrainingSpec, TransformerModel
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy.shipped import plan

H100 = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, per_node=8, nodes=2)
MODEL = TransformerModel(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064)


def ask(**pins: Any) -> PlanRequest:
    """Sixteen devices for a job whose task has all rules."""
    return PlanRequest.model_validate(
        {
            "devices": 16,
            "perPod": 8,
            "shapes": [H100],
            "model": MODEL,
            "training": TrainingSpec(global_batch=64, sequence_length=4096, precision="bf16"),
            "parallelism": {"taskRules": list(TaskRule), **pins},
        }
    )


def refused(**pins: Any) -> Infeasible:
    why = plan(ask(**pins)).infeasible
    assert why is not None
    return why


@pytest.mark.parametrize(
    ("pins", "name", "nearest", "between"),
    [
        ({"microBatch": 64}, "microBatch", 16, (32,)),
        (
            {"tensor": 4, "pipeline": 1, "context": 1, "microBatch": 16, "recompute": "none", "sharding": "full"},
            "microBatch",
            2,
            (8, 4),
        ),
    ],
    ids=["of many layouts", "of one"],
)
def test_the_nearest_value_that_fits_is_named(
    pins: dict[str, Any], name: str, nearest: int, between: tuple[int, ...]
) -> None:
    why = refused(**pins)
    assert (why.field, why.value, why.nearest) == (f"parallelism.{name}", str(pins[name]), str(nearest)), why.message
    assert plan(ask(**pins | {name: nearest})).plan is not None
    assert all(plan(ask(**pins | {name: other})).plan is None for other in between)
    assert f"would fit: parallelism.{name} {nearest};" in why.message


def test_a_pin_that_is_no_number_is_named_as_the_best_plan_has_it() -> None:
    pins = {"tensor": 1, "context": 1, "pipeline": 1, "microBatch": 1, "recompute": "full"}
    why = refused(**pins, sharding="none")
    assert (why.field, why.value) == ("parallelism.sharding", "none")
    assert plan(ask(**pins, sharding=why.nearest)).plan is not None
