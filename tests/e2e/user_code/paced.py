"""The example at a walk, so that a test can act in its middle; losses are those of the example, bit for bit."""

import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from torch import nn

from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks import digits as example

DOUBLES_AFTER = 40
"""Steps. However slow the machine is on which a test acts, the run is not over before it has."""


def paced(args: dict[str, str]) -> Task:
    """Each step takes `pace` seconds longer, then twice as much, then four times, until the file `hurry` is there."""
    task, pace, hurry = example.digits({}), float(args["pace"]), Path(args["hurry"])
    steps = count()

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        end = time.monotonic() + pace * 2 ** (next(steps) // DOUBLES_AFTER)
        while time.monotonic() < end and not hurry.exists():
            time.sleep(min(0.2, pace))
        return task.loss(module, batch)

    return replace(task, loss=loss)
