"""A task that fails where a test wants it: one fault per attempt, each once the checkpoint before it is committed."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks.mlp import mlp


def faulty(args: dict[str, str]) -> Task:
    """The mlp task with faults `what:rank:calls:saved,...`: the next unmarked one happens at the rank's so-manieth
    micro-batch of the attempt, when checkpoint `saved` is in the ledger. Marks and ledger are files in `folder`."""
    folder = Path(args.pop("folder"))
    faults = [fault.split(":") for fault in args.pop("faults").split(",")]
    done = sum((folder / f"mark-{i}").exists() for i in range(len(faults)))
    task = mlp(args)
    if done == len(faults):
        return task
    what, rank, at, saved = faults[done]
    calls = 0

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == int(at) and dist.get_rank() == int(rank):
            while not (folder / f"committed-{saved}").exists():
                time.sleep(0.01)
            (folder / f"mark-{done}").touch()
            fail(what)
        return task.loss(module, batch)

    return replace(task, loss=loss)


def fail(what: str) -> None:
    """Do it."""
    if what == "raise":
        raise ValueError("the user's own mistake")
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGTERM)
