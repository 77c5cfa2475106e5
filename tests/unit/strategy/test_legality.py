"""Layouts that cannot be, each as somebody met it."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.strategy.footprint.settings import LLAMA_8B, setting

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Experts
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.legality import Contradiction, contradiction

QWEN_7B = LLAMA_8B.replace(heads=28, kv_heads=28, hidden=3584)
MIXTRAL = LLAMA_8B.replace(experts=Experts(count=8, per_token=2, ffn=14336))
INTERLEAVED: dict[str, Any] = {"layout": Layout(pipeline=4, virtual=2), "schedule": Schedule.INTERLEAVED}


def broken(wish: Setting, devices: int | None = None) -> Contradiction:
    found = contradiction(wish, devices)
    assert found is not None
    return found


def test_28_heads_name_every_tensor_size_that_divides_them() -> None:
    why = broken(setting(QWEN_7B, layout=Layout(tensor=8)))
    assert (why.field, why.value, why.nearest) == ("tensor", 8, "7 or 14")
    assert "28 heads: it may be 1, 2, 4, 7, 14, 28" in why.message


@pytest.mark.parametrize(
    ("model", "changes", "field", "value", "nearest"),
    [
        (LLAMA_8B, {"layout": Layout(tensor=16)}, "tensor", 16, "8"),
        (LLAMA_8B, {"layout": Layout(expert=2, data=2)}, "expert", 2, "1"),
        (MIXTRAL, {"layout": Layout(expert=3, data=4)}, "expert", 3, "2 or 4"),
        (MIXTRAL, {"layout": Layout(expert=4, data=2)}, "expert", 4, "2"),
        (MIXTRAL, {"layout": Layout(data=12, expert=8)}, "expert", 8, "4"),
        (MIXTRAL, {"layout": Layout(data=2, expert_tensor=4)}, "expertTensor", 4, "2"),
        (LLAMA_8B, {"layout": Layout(tensor=8, sequence=True), "sequence_length": 1001}, "sequence", "true", "false"),
        (LLAMA_8B, {"layout": Layout(context=4), "sequence_length": 1004}, "context", 4, "2 or 251"),
        (LLAMA_8B, {"layout": Layout(virtual=2)}, "virtualStages", 2, "1"),
        (LLAMA_8B, {**INTERLEAVED, "micro_batches": 3}, "accumulationSteps", 3, "4"),
    ],
)
def test_each_law_names_the_nearest_legal_value(
    model: Any, changes: dict[str, Any], field: str, value: int, nearest: str
) -> None:
    why = broken(setting(model, **changes))
    assert (why.field, why.value, why.nearest) == (field, value, nearest)
    assert str(value) in why.message


def test_the_product_of_the_axes_is_the_number_of_devices() -> None:
    """64 devices are not 4 x 8 x 1."""
    why = broken(setting(layout=Layout(tensor=4, pipeline=8, data=1)), 65)
    assert (why.field, why.value, why.nearest) == ("devices", 65, "32")
    assert contradiction(setting(layout=Layout(tensor=4, pipeline=8, data=2), micro_batches=8), 64) is None


def test_experts_need_no_ranks_of_their_own() -> None:
    """The least number of devices is pipeline x max(tensor x context, expert), not the product of them all."""
    wish = setting(MIXTRAL, layout=Layout(tensor=2, data=4, expert=8, sequence=True))
    assert contradiction(wish, 8) is None
    why = broken(replace(wish, layout=replace(wish.layout, expert_tensor=2)), 8)
    assert (why.field, why.value, why.nearest) == ("expert", 8, "4")


def test_five_micro_batches_may_interleave_over_four_stages_as_one_group() -> None:
    assert contradiction(setting(**INTERLEAVED, micro_batches=5)) is None
