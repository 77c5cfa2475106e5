"""A forward pass of a task's model on torch's meta device, where tensors have no values."""

import random
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from kuangchao_worker.parallel.nested import mapped
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.traces import META

SAMPLES: Final = 2
"""In a batch: with one, a dimension of samples could be taken for one that torch repeats."""


def made(task: Task) -> nn.Module:
    """Without values, and as every rank makes it: what the task leaves to chance falls the same way for all."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with META:
        return task.model()


def batch_of(task: Task) -> Any:
    """The first samples, without values."""
    batch = task.collate([task.dataset[n % len(task.dataset)] for n in range(SAMPLES)])  # type: ignore[arg-type]
    return mapped(batch, lambda tensor: tensor.to(META))


def loss_of(task: Task, module: nn.Module) -> Any:
    """What the task's loss gives for a module and the first samples."""
    batch = batch_of(task)
    with META:
        return task.loss(module, batch)
