"""What any codec must pass before a job trusts it: subclass `CodecConformance` in a test file and say how to make one.

Plain functions with assertions: pytest collects the subclass, any other runner can call them.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch

from kuangchao_worker.plugins import Codec, Seat

NAME = "block.weight"
SIZES: Sequence[int] = (0, 1, 2, 7, 127, 2_048, 2_053)
SEED = 7


class CodecConformance:
    """The tests. `relative_error` bounds |decode(encode(x)) - x| / max|x| where the codec forgets nothing of x."""

    relative_error: ClassVar[float | None] = None
    """None: a single pass may leave any part out, as sparse codecs do."""
    keeps_sum: ClassVar[bool] = False
    """Whether what was sent and what is remembered add up to what was given."""

    def make(self) -> Codec:
        """A new codec, as its entry point makes it."""
        raise NotImplementedError

    def made(self, elements: int, seat: Seat | None = None) -> Codec:
        """A codec that was told what it must know."""
        codec = self.make()
        codec.seated(seat or Seat())
        codec.expect({NAME: elements})
        return codec

    def test_payload_form_depends_on_the_length_alone(self) -> None:
        """Ranks cut each other's payloads by their own lengths."""
        for elements in SIZES:
            codec = self.made(elements)
            forms = {
                (payload.shape, payload.dtype)
                for step, gradient in enumerate(_gradients(elements), 1)
                for payload in [codec.encode(step, NAME, gradient)]
            }
            assert len(forms) == 1, f"{elements} elements: {forms}"
            assert len(next(iter(forms))[0]) == 1

    def test_decodes_to_as_many_elements(self) -> None:
        """Also one element, and lengths that no block divides."""
        for elements in SIZES:
            codec = self.made(elements)
            assert codec.decode(codec.encode(1, NAME, torch.ones(elements)), elements).shape == (elements,)

    def test_payload_of_one_type_for_all_lengths(self) -> None:
        """Payloads of several parameters travel as one tensor."""
        assert len({self.made(n).encode(1, NAME, torch.ones(n)).dtype for n in SIZES}) == 1

    def test_zero_stays_zero(self) -> None:
        """A parameter without gradient must not drift."""
        codec = self.made(100)
        assert not codec.decode(codec.encode(1, NAME, torch.zeros(100)), 100).any()

    def test_error_is_bounded(self) -> None:
        """By the codec's own figure, for ordinary, tiny and huge numbers."""
        if self.relative_error is None:
            return
        for scale in (1.0, 1e-30, 1e30):
            gradient = _random(2_053) * scale
            codec = self.made(2_053)
            error = (codec.decode(codec.encode(1, NAME, gradient), 2_053) - gradient).abs().max()
            assert error <= self.relative_error * gradient.abs().max(), f"scale {scale}"

    def test_same_calls_give_the_same_bytes(self) -> None:
        """Whatever the global generator is at, and with any number of threads."""
        threads = torch.get_num_threads()
        runs = []
        for number in (1, 2):
            torch.manual_seed(number)
            torch.set_num_threads(number)
            codec = self.made(2_053)
            runs.append([bytes(_bytes(codec.encode(step, NAME, _random(2_053))).tolist()) for step in (1, 2, 3)])
        torch.set_num_threads(threads)
        assert runs[0] == runs[1]

    def test_draws_nothing_from_the_global_generator(self) -> None:
        """Its numbers belong to the model."""
        before = torch.get_rng_state()
        self.made(100).encode(1, NAME, torch.linspace(-1, 1, 100))
        assert torch.equal(before, torch.get_rng_state())

    def test_gradient_is_left_alone(self) -> None:
        """It lies in the buffer that is sent."""
        gradient = _random(100)
        copy = gradient.clone()
        self.made(100).encode(1, NAME, gradient)
        assert torch.equal(gradient, copy)

    def test_not_finite_is_seen_and_not_remembered(self) -> None:
        """A step that overflowed is skipped by whoever sees it; the memory must not carry it on."""
        for bad in (float("nan"), float("inf"), float("-inf")):
            codec = self.made(100)
            codec.encode(1, NAME, _random(100))
            before = {name: tensor.clone() for name, tensor in codec.memory().items()}
            spoilt = _random(100)
            spoilt[17] = bad
            assert not codec.decode(codec.encode(2, NAME, spoilt), 100).isfinite().all(), bad
            assert all(torch.equal(before[name], tensor) for name, tensor in codec.memory().items()), bad

    def test_nothing_is_lost(self) -> None:
        """Over 200 steps, what was sent and what is remembered add up to what was given."""
        if not self.keeps_sum:
            return
        codec, elements = self.made(500), 500
        given, sent = torch.zeros(elements, dtype=torch.float64), torch.zeros(elements, dtype=torch.float64)
        for step, gradient in enumerate(_random(200 * elements).view(200, elements), 1):
            given += gradient
            sent += codec.decode(codec.encode(step, NAME, gradient), elements)
        left = (given - sent - codec.memory()[NAME]).abs().max()
        assert left <= 1e-5 * given.abs().max()

    def test_goes_on_from_a_saved_memory(self) -> None:
        """With its memory put back, a new codec gives the bytes that the old one would have given."""
        codec, gradients = self.made(300), _random(1_800).view(6, 300)
        for step in (1, 2, 3):
            codec.encode(step, NAME, gradients[step - 1])
        saved = {name: tensor.clone() for name, tensor in codec.memory().items()}
        other = self.made(300)
        other.remember(saved)
        for step in (4, 5, 6):
            pair = [_bytes(c.encode(step, NAME, gradients[step - 1])) for c in (codec, other)]
            assert torch.equal(*pair)

    def test_memory_is_by_name_and_no_other_is_taken(self) -> None:
        """Wrong names and shapes are refused, and change nothing."""
        codec = self.made(50)
        codec.encode(1, NAME, _random(50))
        assert codec.memory().keys() <= {NAME}
        before = {name: tensor.clone() for name, tensor in codec.memory().items()}
        for foreign in ({"other.weight": torch.zeros(50)}, {NAME: torch.zeros(51)}):
            assert next(iter(foreign)) in _refusal(codec, foreign), "names the parameter"
        assert all(torch.equal(before[name], tensor) for name, tensor in codec.memory().items())


def _refusal(codec: Codec, memory: dict[str, torch.Tensor]) -> str:
    try:
        codec.remember(memory)
    except ValueError as error:
        return str(error)
    return ""


def _random(elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(SEED))


def _gradients(elements: int) -> Iterator[torch.Tensor]:
    yield torch.zeros(elements)
    yield torch.full((elements,), 1e-40)  # denormal
    yield _random(elements)
    yield torch.full((elements,), float("nan"))


def _bytes(payload: torch.Tensor) -> torch.Tensor:
    return payload.contiguous().view(torch.uint8)
