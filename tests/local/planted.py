"""A task that does what it must not, on one rank or on all."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.mlp import mlp
from kuangchao_worker.tasks.text import transformer

SMALL = {"layers": "2", "hidden": "16", "heads": "2", "kvHeads": "2", "ffn": "32", "sequence": "8", "windows": "96"}

AT = 3
"""Call of the loss at which it happens: the step, where there is one micro-batch."""


@torch.no_grad()
def write(module: nn.Module) -> None:
    next(iter(module.parameters())).add_(1.0)


def write_unseen(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.mul_(0.5)


def collective(_: nn.Module) -> None:
    dist.all_reduce(torch.ones(1))


def new_group(_: nn.Module) -> None:
    dist.new_group([0, 1])


def store(_: nn.Module) -> None:
    dist.distributed_c10d._get_default_store().set("here/1", "")


def leave(_: nn.Module) -> None:
    dist.destroy_process_group()


def caught(_: nn.Module) -> None:
    try:
        dist.barrier()
    except Exception:  # noqa: BLE001 - that is the fault
        return


ACTS: dict[str, Callable[[nn.Module], None]] = {
    act.__name__: act for act in (write, write_unseen, collective, new_group, store, leave, caught)
}


def acting(args: dict[str, str]) -> Task:
    """The mlp or the transformer (`model`), whose loss does `act` on `rank`, or on all."""
    act, rank = ACTS[args["act"]], args.get("rank")
    task = transformer(dict(SMALL)) if args.get("model") == "transformer" else mlp({"dropout": "0"})
    calls = 0

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        # rules are tried beforehand where tensors have no values
        calls += not batch[0].is_meta
        if calls >= AT and rank in (None, str(dist.get_rank())):
            act(module)
        return task.loss(module, batch)

    return replace(task, loss=loss)
