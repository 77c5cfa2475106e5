"""The conformance kit finds what is wrong with a codec: each of these has one fault, and a test of the kit says so."""

from collections.abc import Mapping

import pytest
import torch

from kuangchao_compression.casts import Bf16
from kuangchao_compression.feedback import ErrorFeedback
from kuangchao_compression.plugin import compression
from kuangchao_worker.plugins import Codec
from kuangchao_worker.plugins.conformance import CodecConformance
from tests.unit.plugins.toys import Halved


class Grows(Bf16):
    """Its payload depends on what is in the gradient."""

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient[gradient != 0].bfloat16()


class Draws(Bf16):
    """Rounds by the model's random numbers."""

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return (gradient + torch.rand_like(gradient) * 1e-2).bfloat16()


class Writes(Bf16):
    """Codes in place."""

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.mul_(2).bfloat16()


class Hides(Bf16):
    """Makes a small number of one that is none."""

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.nan_to_num(0, 0, 0).bfloat16()


class Forgets(ErrorFeedback):
    """Gives out a memory that it does not take back."""

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        super().remember({name: torch.zeros_like(tensor) for name, tensor in memory.items()})


class Loses(ErrorFeedback):
    """Keeps half of what was lost."""

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        payload = super().encode(step, name, gradient)
        self._memory[name] /= 2
        return payload


class TakesAll(ErrorFeedback):
    """Takes a memory of any name."""

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        self._memory = dict(memory)


def sparse() -> Codec:
    return compression({"method": "topk", "fraction": "0.05", "errorFeedback": "false"})


FAULTS = {
    "payload_form": (Grows, "test_payload_form_depends_on_the_length_alone"),
    "same_calls": (Draws, "test_same_calls_give_the_same_bytes"),
    "draws_nothing": (Draws, "test_draws_nothing_from_the_global_generator"),
    "left_alone": (Writes, "test_gradient_is_left_alone"),
    "bounded": (Halved, "test_error_is_bounded"),
    "not_finite": (Hides, "test_not_finite_is_seen_and_not_remembered"),
    "saved memory": (lambda: Forgets(sparse()), "test_goes_on_from_a_saved_memory"),
    "lost": (lambda: Loses(sparse()), "test_nothing_is_lost"),
    "names": (lambda: TakesAll(sparse()), "test_memory_is_by_name_and_no_other_is_taken"),
}


@pytest.mark.parametrize(("make", "test"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_found(make: type[Codec], test: str) -> None:
    class Kit(CodecConformance):
        relative_error = 0.01
        keeps_sum = True

        def make(self) -> Codec:
            return make()

    with pytest.raises((AssertionError, RuntimeError)):
        getattr(Kit(), test)()
