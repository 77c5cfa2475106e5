"""What all ranks agree on: where to start, and after each step the mean loss, whether to stop and whether to save.

A rank that acted on its own signal or clock would leave the others waiting in a collective for ever.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from kuangchao_contracts.checkpoint import CheckpointRef


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
        self._values = torch.zeros(3, dtype=torch.float64, device=device)
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        self._losses = self._world // stages

    def after_step(self, loss: float, *, stop: bool, save: bool) -> Agreed:
        """Combine what each rank saw: the mean of the losses, and yes if any rank said yes."""
        if self._world == 1:
            return Agreed(loss, stop, save)
        self._values.copy_(torch.tensor((loss, stop, save), dtype=torch.float64))
        dist.all_reduce(self._values)
        total, stops, saves = self._values.tolist()
        return Agreed(total / self._losses, stops > 0, saves > 0)

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
