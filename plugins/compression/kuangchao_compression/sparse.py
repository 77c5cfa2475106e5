"""top-k: the few numbers of a gradient that are largest, and where they were; the rest is left out of this step.

Of use with an error memory only (Stich et al. 2018, Sparsified SGD with Memory): what is left out once must come later.
"""

import math
from typing import ClassVar

import torch

from kuangchao_compression import VERSION
from kuangchao_worker.plugins import Codec, Seat

INDEX_BYTES = 4


class TopK(Codec):
    """ceil(fraction x elements) numbers, coded by another codec. A payload begins with their int32 places."""

    version: ClassVar[str] = VERSION

    def __init__(self, fraction: float, numbers: Codec) -> None:
        self._fraction, self._numbers = fraction, numbers

    def seated(self, seat: Seat) -> None:
        """See Codec."""
        self._numbers.seated(seat)

    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """See Codec. NaN counts as the largest of all, so it is never left out."""
        kept = self._kept(len(gradient))
        found = gradient.abs().nan_to_num(nan=math.inf, posinf=math.inf).topk(kept, sorted=False).indices.sort().values
        numbers = self._numbers.encode(step, name, gradient[found])
        return torch.cat((found.to(torch.int32).view(torch.uint8), numbers))

    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        """See Codec."""
        kept = self._kept(elements)
        found = payload[: kept * INDEX_BYTES].clone().view(torch.int32).long()
        whole = torch.zeros(elements, device=payload.device)
        whole[found] = self._numbers.decode(payload[kept * INDEX_BYTES :], kept)
        return whole

    def _kept(self, elements: int) -> int:
        return math.ceil(self._fraction * elements)
