"""Runs the user's task on the module that state owns. User code sees a module and a batch, nothing of the plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Precision
from kuangchao_worker.tasks import Task


class Store(Protocol):
    """What state gives to the user's code."""

    def forward(self) -> nn.Module:
        """The module as it must be called."""

    def reduction(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch."""

    def complete(self, make: Callable[[], nn.Module]) -> nn.Module:
        """A plain module with the weights of all ranks, on rank 0. All ranks must call."""


class TaskAlgorithm:
    """Forward, backward and evaluation of one rank."""

    def __init__(
        self,
        task: Task,
        store: Store,
        *,
        rank: int,
        device: torch.device,
        accumulation: int,
        precision: Precision,
    ) -> None:
        if precision is Precision.FP16:
            raise InvalidInputError("training.precision", "fp16", "needs gradient scaling, which is not there", "bf16")
        self._task, self._store, self._rank, self._device = task, store, rank, device
        self._scale, self._precision = 1 / accumulation, precision

    def micro_step(self, batch: Any, *, last: bool) -> float:
        """See Algorithm."""
        with self._store.reduction(last=last):
            with self._autocast():
                loss = self._task.loss(self._store.forward(), _to_device(batch, self._device))
            (loss if self._scale == 1 else loss * self._scale).backward()  # type: ignore[no-untyped-call]  # torch
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """See Algorithm."""
        if self._task.evaluate is None:
            return {}
        module = self._store.complete(self._task.model).to(self._device).eval()
        if self._rank != 0:
            return {}
        with torch.no_grad(), self._autocast():
            return self._task.evaluate(module)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision is Precision.BF16:
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()


def _to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
