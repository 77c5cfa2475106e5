"""int8 per block: each block of numbers has a scale of its own, so that one large number spoils its block only.

A payload is the scales (fp32, one for each block), then the numbers (int8): q = round(127 x / max|x|), as in the
block-wise quantization of Dettmers et al. 2022 (8-bit optimizers), with linear steps.
"""

import hashlib
from enum import StrEnum
from typing import ClassVar, Final

import torch
from torch.nn.functional import pad

from kuangchao_compression import VERSION
from kuangchao_worker.plugins import Codec, Seat

LEVELS: Final = 127
SCALE_BYTES: Final = 4


class Rounding(StrEnum):
    """Nearest has the smaller error; stochastic is right on average, also for numbers far below a step."""

    NEAREST = "nearest"
    STOCHASTIC = "stochastic"


class Int8Blocks(Codec):
    """A quarter of the bytes of fp32; no number is off by more than max|x|/254 of its block (stochastic: /127)."""

    version: ClassVar[str] = VERSION

    def __init__(self, block: int, rounding: Rounding) -> None:
        self._block, self._rounding = block, rounding
        self._seat = Seat()

    def seated(self, seat: Seat) -> None:
        """See Codec."""
        self._seat = seat

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """See Codec. Not finite numbers give a scale that is not finite, so that nobody takes them for small ones."""
        rows = self._rows(gradient)
        scales = rows.abs().amax(dim=1, keepdim=True) / LEVELS
        # one pass by the reciprocal; everything after it in place: passes over memory are what coding costs
        steps = rows * torch.where(scales > 0, 1 / scales, 0.0)
        if self._rounding is Rounding.STOCHASTIC:
            steps.add_(self._draw(step, name, steps)).floor_()
        else:
            steps.round_()
        numbers = steps.nan_to_num_(0).clamp_(-LEVELS, LEVELS).to(torch.int8).view(-1)[: len(gradient)]
        return torch.cat((scales.view(-1).view(torch.uint8), numbers.view(torch.uint8)))

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        """See Codec."""
        blocks = -(-elements // self._block)
        # a slice of many payloads may begin anywhere, and a view as fp32 must not
        scales = payload[: blocks * SCALE_BYTES].clone().view(torch.float32).view(-1, 1)
        rows = self._rows(payload[blocks * SCALE_BYTES :].view(torch.int8))
        return (rows * scales).view(-1)[:elements]

    def _rows(self, flat: torch.Tensor) -> torch.Tensor:
        # the count is said, since torch cannot find it for no numbers at all
        blocks = -(-len(flat) // self._block)
        return pad(flat.float(), (0, -len(flat) % self._block)).view(blocks, self._block)

    def _draw(self, step: int, name: str, like: torch.Tensor) -> torch.Tensor:
        """Numbers from [0, 1) by seed, rank, step and parameter alone; the global generator is untouched."""
        text = f"{self._seat.seed}/{self._seat.rank}/{step}/{name}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        generator = torch.Generator(like.device).manual_seed(seed)
        return torch.rand(like.shape, generator=generator, device=like.device)
