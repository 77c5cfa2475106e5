"""Tasks that fail where a test wants it. Their first run leaves a mark, so that the next attempt goes through."""

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
    """The mlp task; `rank` does `what` (kill, raise, term) at its `call`-th micro-batch, once per `mark` file,
    as soon as there is a file `after`."""
    own = {name: args.pop(name) for name in ("rank", "call", "what", "mark", "after")}
    task = mlp(args)
    calls = 0

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == int(own["call"]) and dist.get_rank() == int(own["rank"]) and not Path(own["mark"]).exists():
            Path(own["mark"]).touch()
            while not Path(own["after"]).exists():
                time.sleep(0.01)
            _fail(own["what"])
        return task.loss(module, batch)

    return replace(task, loss=loss)


def _fail(what: str) -> None:
    if what == "raise":
        raise ValueError("the user's own mistake")
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGTERM)
