"""The work that both sides of a comparison do, and a clock inside it that both share."""

import itertools
import time
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks.digits import digits

WARM_UP = 10
"""Steps that are not timed: allocation, lazy imports, first collectives."""


class StepClock:
    """Steps per second, and CPU time per step, between the end of the warm-up and the last step on one rank.

    CPU time is what remains comparable when other programs share the cores.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._times: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Call once in each step, always at the same point."""
        self._times.append((self._clock(), self._cpu()))

    def measured(self) -> dict[str, float]:
        """Rate and CPU seconds per step after the warm-up, and how many steps there were with it."""
        timed = self._times[WARM_UP:]
        (began, cpu_began), (ended, cpu_ended), steps = timed[0], timed[-1], len(timed) - 1
        return {
            "stepsPerSecond": steps / (ended - began),
            "cpuSecondsPerStep": (cpu_ended - cpu_began) / steps,
            "ticks": len(self._times),
        }


def matrices(width: int) -> Task:
    """A model of square layers: one step takes 50-100 ms on two shared cores at width 1024."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(256, width, generator=generator), torch.randn(256, 1, generator=generator))

    def network() -> nn.Module:
        blocks = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise([width] * 4)]
        return nn.Sequential(*blocks, nn.Linear(width, 1))

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=1e-3)

    return Task(model=network, dataset=data, loss=_mse, optimizer=optimizer)


def _mse(module: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(module(inputs), targets)


def workload(name: str) -> Task:
    """A workload by name: `digits` (steps of a few ms or less) or `matrices` (50-100 ms)."""
    return digits({}) if name == "digits" else matrices(1024)


def timed(args: dict[str, str]) -> Task:
    """The workload as a task that reports its own rate; what `kuangchao run` trains in the benchmark."""
    task, clock = workload(args["workload"]), StepClock()

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        clock.tick()
        return task.loss(module, batch)

    return Task(
        model=task.model,
        dataset=task.dataset,
        loss=loss,
        optimizer=task.optimizer,
        scheduler=task.scheduler,
        evaluate=lambda _module: clock.measured(),
        collate=task.collate,
    )
