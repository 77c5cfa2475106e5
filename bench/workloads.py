"""The work that both sides of a comparison do."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from bench.turns import Turn
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks.digits import digits

RULES: Final = ParallelRules(
    tensor={"0.0": TensorStyle.COLUMNS, "1.0": TensorStyle.ROWS, "2.0": TensorStyle.COLUMNS, "3": TensorStyle.ROWS}
)
"""How the layers of `matrices` are split: in pairs, so that one sum ends each."""


def matrices(width: int) -> Task:
    """A model of square layers: at width 1024 and 64 samples a rank, one step takes 50-100 ms on a core."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(256, width, generator=generator), torch.randn(256, 1, generator=generator))

    def network() -> nn.Module:
        blocks = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise([width] * 4)]
        return nn.Sequential(*blocks, nn.Linear(width, 1))

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=1e-3)

    return Task(model=network, dataset=data, loss=_mse, optimizer=optimizer, rules=RULES)


def _mse(module: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(module(inputs), targets)


def workload(name: str) -> Task:
    """A workload by name: `digits` (steps of a few ms or less) or `matrices` (50-100 ms)."""
    return digits({}) if name == "digits" else matrices(1024)


class Ticking:
    """The first tensor of data, which says when a step begins: when so many batches have been taken. Single samples do
    not count. The data stay a plain TensorDataset, as ranks index no other whole.
    """

    def __init__(self, tensor: torch.Tensor, loads: int, tick: Callable[[], None]) -> None:
        self._tensor, self._loads, self._tick, self._taken = tensor, loads, tick, 0

    def size(self, dim: int) -> int:
        """As of the tensor."""
        return self._tensor.size(dim)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The samples at these places."""
        if isinstance(index, torch.Tensor):
            if self._taken % self._loads == 0:
                self._tick()
            self._taken += 1
        return self._tensor[index]


def timed(args: dict[str, str]) -> Task:
    """The workload as a task that trains by turns; what `kuangchao run` trains in the benchmark."""
    task = workload(args["workload"])
    turn: list[Turn] = []

    def tick() -> None:
        if not turn:  # made by the first step, for only ranks take turns and others load the task as well
            turn.append(Turn(args["socket"], "ours", int(args["block"])))
        turn[0].tick()

    data = task.dataset
    if not isinstance(data, TensorDataset):
        raise TypeError("a workload's data are whole tensors")
    first, *others = data.tensors
    ticking = TensorDataset(first, *others)
    ticking.tensors = (Ticking(first, int(args["loads"]), tick), *others)  # type: ignore[assignment]  # indexed alone
    return dataclasses.replace(task, dataset=ticking, evaluate=None)
