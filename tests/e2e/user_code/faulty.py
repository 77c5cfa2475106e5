"""User code that misbehaves, brought into the pods by a ConfigMap as a user would bring a module."""

import os

import torch
import torch.distributed as dist
from torch import nn

from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks import digits as example


class Counting(nn.Module):
    """The example's network that does something at its n-th forward pass."""

    def __init__(self, inner: nn.Module, step: int, act) -> None:
        super().__init__()
        self.inner, self.left, self.act = inner, step, act

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            self.act()
        return self.inner(images)


def _wrap(args: dict[str, str], act) -> Task:
    task = example.digits({})
    fields = {name: getattr(task, name) for name in task.__dataclass_fields__}
    return Task(**{**fields, "model": lambda: Counting(task.model(), int(args["step"]), act)})


def raises(args: dict[str, str]) -> Task:
    """Every rank raises the same exception at the same step."""

    def act() -> None:
        raise ValueError("the learning rate of user code is not a number")

    return _wrap(args, act)


def leaves(args: dict[str, str]) -> Task:
    """Rank 1 ends with exit code 0 in the middle of training; rank 0 waits for it for ever."""

    def act() -> None:
        if dist.get_rank() == 1:
            os._exit(0)

    return _wrap(args, act)
