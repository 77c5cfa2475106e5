"""The example at a walk, so that a test can act in its middle; losses are those of the example, bit for bit."""

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks import digits as example


def paced(args: dict[str, str]) -> Task:
    """Each step takes `pace` seconds longer until the file `hurry` is there."""
    task, pace, hurry = example.digits({}), float(args["pace"]), Path(args["hurry"])

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if not hurry.exists():
            time.sleep(pace)
        return task.loss(module, batch)

    return replace(task, loss=loss)
