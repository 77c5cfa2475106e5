"""What all ranks agree on: where to start, and after each step the mean loss, whether to stop and whether to save.

A rank that acted on its own signal or clock would leave the others waiting in a collective for ever.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import RanksDifferError
from kuangchao_worker.parallel import comparing

FINGERPRINT: Final = 16
"""Bytes by which ranks compare what they have."""
ROUNDING: Final = 1e-2
"""By what part of themselves numbers may differ that were computed alike, in bf16 too. Another seed's differ more."""
UNKNOWN: Final = -1.0
"""Stands for a norm that is no number: ranks have it together or not at all."""
NOTHING: Final = 1e-6
"""What is smaller is no difference."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The same on every rank, bit for bit."""

    loss: float
    stop: bool
    save: bool


class Agreement:
    """Agrees over the world group, or with itself when it is alone. Of `stages` ranks one has a loss."""

    def __init__(self, device: torch.device, stages: int = 1) -> None:
        # float64: the mean loss must keep every bit of the ranks' float32 losses
        self._device = device
        self._values = torch.zeros(6, dtype=torch.float64, device=device)
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        self._losses = self._world // stages

    def after_step(self, loss: float, *, stop: bool, save: bool, step: int = 0, norm: float = 0.0) -> Agreed:
        """Combine what each rank saw: the mean of the losses, and yes if any rank said yes.

        Raises RanksDifferError where ranks are not at the same step: at least one is not at the mean of all. Also where
        the norm of the gradients, which is that of the whole model, is not the same on all: then all of them are told.
        """
        if self._world == 1:
            return Agreed(loss, stop, save)
        norm = norm if math.isfinite(norm) else UNKNOWN
        self._values.copy_(torch.tensor((loss, stop, save, step, norm, norm * norm), dtype=torch.float64))
        dist.all_reduce(self._values)
        total, stops, saves, steps, norms, squares = self._values.tolist()
        if steps != step * self._world:
            raise RanksDifferError(
                f"rank {dist.get_rank()} is at step {step}, all are at {steps / self._world:g} on average"
            )
        self._require_one_norm(step, norm, norms / self._world, squares / self._world)
        return Agreed(total / self._losses, stops > 0, saves > 0)

    def _require_one_norm(self, step: int, own: float, mean: float, square: float) -> None:
        if square - mean * mean > (ROUNDING * mean) ** 2 + NOTHING**2:
            raise RanksDifferError(
                f"step {step}: the gradients' norm is {own:g} on rank {dist.get_rank()} and {mean:g} on average; some"
                " did not reach all ranks, or were changed after: backward is not the loss' own"
            )

    def same(self, mine: Mapping[str, str]) -> None:
        """Raise RanksDifferError, naming the ranks, for anything that is not what rank 0 has."""
        if self._world == 1:
            return
        digests = [_fingerprint(text) for text in mine.values()]
        for name, others in zip(mine, comparing.others(digests, self._device), strict=True):
            if others:
                raise RanksDifferError(f"the {name} of ranks {others} is not that of rank 0; all must be alike")

    def near(self, values: Mapping[str, torch.Tensor], what: str) -> None:
        """Raise RanksDifferError, naming it, for a tensor whose elements are not the same on all ranks.

        Up to rounding: machines of several kinds compute first weights that differ in the last bits.
        """
        if self._world == 1 or not values:
            return
        own = torch.cat([value.detach().flatten().double() for value in values.values()]).to(self._device)
        near = comparing.near(own, ROUNDING, NOTHING)
        for name, same in zip(values, torch.split(near, [value.numel() for value in values.values()]), strict=True):
            if not same.all():
                raise RanksDifferError(f"the {what} {name} are not the same on all ranks; all must make them alike")

    def start(self, restore: CheckpointRef | None) -> CheckpointRef | None:
        """The restore point that rank 0 was given. Ranks that choose alone may resume at different steps."""
        if self._world == 1:
            return restore
        raw = restore.canonical() if restore is not None else b""
        size = torch.tensor([len(raw)], dtype=torch.int64, device=self._device)
        dist.broadcast(size, src=0)
        if not int(size):
            return None
        mine = raw if dist.get_rank() == 0 else bytes(int(size))
        content = torch.tensor(list(mine), dtype=torch.uint8, device=self._device)
        dist.broadcast(content, src=0)
        return CheckpointRef.model_validate_json(bytes(content.tolist()))


def _fingerprint(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:FINGERPRINT]
