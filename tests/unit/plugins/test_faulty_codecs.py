"""A codec that keeps to no form is told by name, with the parameter, before anything of it is sent."""

import logging
from collections.abc import Callable

import pytest
import torch

from kuangchao_compression.casts import Bf16
from kuangchao_compression.plugin import compression
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.ports.plugin import MemoryAt, OpenStep
from tests.unit.plugins.parts import Rank

NAMES = ("a", "b")


class Faulty(Bf16):
    """Payloads as a test says."""

    def __init__(self, made: Callable[[int, str, torch.Tensor], object]) -> None:
        self._made = made

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return self._made(step, name, gradient)  # type: ignore[return-value]  # planted


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda step, name, g: g.tolist(), "payload of a is list, no tensor of one dimension"),
        (lambda step, name, g: g.view(1, -1), r"payload of a is \[1, 4\], no tensor of one dimension"),
        (lambda step, name, g: g[: 5 - step], "payload of a is 3 x torch.float32, and 4 x torch.float32 for other"),
        (
            lambda step, name, g: g if name == "a" else g.half(),
            "payload of b is 4 x torch.float16, and 4 x torch.float32",
        ),
    ],
    ids=["no tensor", "a matrix", "another length later", "another type"],
)
def test_payloads_have_one_form(made: Callable[[int, str, torch.Tensor], object], said: str) -> None:
    rank = Rank("faulty", Faulty(made))
    rank.service.expect(dict.fromkeys(NAMES, 4))

    def steps() -> None:
        for step in (1, 2):
            rank.call("plugin.open_step", OpenStep(step_id=step))
            rank.service.encode(NAMES, [torch.ones(2, 2), torch.ones(4)])

    with pytest.raises(InvalidInputError, match=f"plugins='faulty': {said}"):
        steps()


def test_payloads_that_travel_together_are_of_one_type() -> None:
    """Bytes beside numbers would become numbers."""
    rank = Rank("faulty", Faulty(lambda step, name, g: g if name == "a" else g.half()))
    rank.call("plugin.open_step", OpenStep(step_id=1))
    with pytest.raises(InvalidInputError, match=r"a, b are torch\.float16, torch\.float32, not of one type"):
        rank.service.encode(NAMES, [torch.ones(3), torch.ones(4)])


def test_gradients_come_back_whole() -> None:
    rank = Rank("faulty", Bf16())
    with pytest.raises(InvalidInputError, match=r"plugins='faulty': decodes 5 elements to \[4\]"):
        rank.service.decode(torch.ones(4).bfloat16(), 5)


@pytest.mark.parametrize("options", [{"method": "bf16"}, {"method": "int8", "errorFeedback": "false"}])
def test_a_method_that_remembers_nothing_goes_on_without_the_memory(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Options may change while a job is suspended; its checkpoint still has what the one before held back."""
    rank = Rank("compression", compression(options))
    rank.service.expect(dict.fromkeys(NAMES, 4))
    rank.call("plugin.restore", MemoryAt(step=3))
    with caplog.at_level(logging.WARNING):
        rank.service.remember({"a": torch.ones(4), "b": torch.ones(4)})
    assert "ErrorMemoryReset: plug-in compression remembers nothing now" in caplog.text
