"""The layouts of the suite `worker` as one writes them by hand with torch: what the executor is measured against.

Each keeps a rank's share of a task's model. Nothing here is ours but the task itself.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from bench.layouts import MICRO_BATCHES, Layout
from kuangchao_contracts.rules import TensorStyle
from kuangchao_worker.tasks import Task


class Hand(Protocol):
    """A rank's share of a model."""

    module: nn.Module

    def backward(self, batch: Any) -> torch.Tensor:
        """Forward and backward of a step; the loss as this rank has it."""

    def norm(self) -> float:
        """Norm of the whole model's gradient."""


class Whole:
    """One module and one call of it: data parallel, sharded and tensor parallel differ in what was made of it."""

    def __init__(self, task: Task, module: nn.Module) -> None:
        self._task, self.module = task, module

    def backward(self, batch: Any) -> torch.Tensor:
        """See Hand."""
        loss = self._task.loss(self.module, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        return loss.detach()

    def norm(self) -> float:
        """See Hand."""
        return _norm(self.module)


class Staged:
    """Half of a sequential model as a stage of a pipeline of two."""

    def __init__(self, task: Task) -> None:
        blocks, rank = list(task.model().children()), dist.get_rank()
        half = len(blocks) // 2
        self.module = nn.Sequential(*(blocks[half:] if rank else blocks[:half]))
        self._last = rank == 1
        stage = PipelineStage(self.module, rank, 2, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)

    def backward(self, batch: Any) -> torch.Tensor:
        """See Hand; nothing on the first stage."""
        inputs, targets = batch
        losses: list[torch.Tensor] = []
        if self._last:
            self._schedule.step(target=targets, losses=losses)
            return torch.stack(losses).mean()
        self._schedule.step(inputs)
        return torch.zeros(())

    def norm(self) -> float:
        """See Hand."""
        square = torch.tensor(_norm(self.module)).square()
        dist.all_reduce(square)
        return square.sqrt().item()


def made(layout: Layout, task: Task) -> Hand:
    """A task's model over the ranks of this process group."""
    if layout is Layout.PIPELINE:
        return Staged(task)
    module = task.model()
    if layout is Layout.DATA:
        return Whole(task, DistributedDataParallel(module))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if layout is Layout.TENSOR:
        styles = {TensorStyle.COLUMNS: ColwiseParallel(), TensorStyle.ROWS: RowwiseParallel()}
        parallelize_module(module, mesh, {name: styles[style] for name, style in task.rules.tensor.items()})
        return Whole(task, module)
    for block in module.children():
        fully_shard(block, mesh=mesh)
    return Whole(task, fully_shard(module, mesh=mesh))


def _norm(module: nn.Module) -> float:
    norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
