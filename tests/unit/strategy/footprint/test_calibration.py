"""A calibration file is whole or refused by name: a plan never looks for a figure that is not there."""

import json
from typing import Any

import pytest

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.layers.strategy.footprint.calibration import PLANNED, parse
from kuangchao_operator.layers.strategy.footprint.shipped import load
from kuangchao_operator.layers.strategy.search.space import FRAMEWORK


def shipped() -> dict[str, Any]:
    return load().wire()


def test_the_shipped_figures_are_whole() -> None:
    assert parse(load().canonical(), "here") == load()
    assert set(PLANNED) == set(FRAMEWORK.values())


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("backends",), {}, "'backends': is no calibration: no figure for kuangchao"),
        (("optimizerBytes",), {}, "'optimizerBytes': .*no figure for sgd"),
        (("visiblePermille",), 45, r"'backends\.kuangchao-cpu\.sparePermille': .*below visiblePermille 45"),
        (("backends", "kuangchao", "states"), {}, r"'backends\.kuangchao\.states': .*no figure for fp32"),
        (("backends", "kuangchao", "element", "bf16"), 0, r"'backends\.kuangchao\.element\.bf16': .*at least 1"),
        (("backends", "kuangchao", "linearInput"), {}, r"linearInput': .*no figure for fp32"),
        (("backends", "megatron", "logitBytes"), {"plain": 6}, r"logitBytes': .*no figure for fused"),
        (("backends", "kuangchao", "reservedPermille"), {"other": 1}, r"reservedPermille': .*no figure for default"),
    ],
    ids=str,
)
def test_a_figure_that_is_absent_or_cannot_be_is_named(where: tuple[str, ...], value: Any, said: str) -> None:
    body = shipped()
    place = body
    for name in where[:-1]:
        place = place[name]
    place[where[-1]] = value
    with pytest.raises(InvalidInputError, match=said):
        parse(json.dumps(body).encode(), "here")
