"""A task whose loss needs memory for each sample, more than there is for many at a time: with the real allocator."""

import dataclasses
import json
import re
import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks.mlp import mlp

PATIENCE = 300.0
ROOM = 200 << 20
"""Bytes that this process may still take."""
PER_SAMPLE = 16 << 20


def hungry(args: dict[str, str]) -> Task:
    """A perceptron in fp64 that takes `PER_SAMPLE` for each sample from its sixth call on; `fed`: it takes nothing.

    `saved`: folder of the run whose ledger must have step 4 before.
    """
    task, calls = mlp({"dropout": "0"}), 0

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        inputs, targets = batch
        if calls > 5 and "fed" not in args:
            await_checkpoint(args["saved"])
            take(len(inputs) * PER_SAMPLE)
        return task.loss(module, (inputs.double(), targets.double()))

    return dataclasses.replace(task, model=lambda: task.model().double(), loss=loss)


def await_checkpoint(folder: str) -> None:
    """Wait until the ledger has step 4, so that it is known where a second attempt begins."""
    deadline = time.monotonic() + PATIENCE
    while not any(
        checkpoint["step"] >= 4
        for path in Path(folder).glob("runs/*/status.json")
        for checkpoint in json.loads(path.read_text())["status"].get("checkpoints", ())
    ):
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint of step 4")
        time.sleep(0.05)


def take(size: int) -> Any:
    """So many bytes. Raises what the allocator raises where there are not so many."""
    status = Path("/proc/self/status").read_text()
    held = int(re.findall(r"VmData:\s+(\d+)", status)[0]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held + ROOM, hard))
    try:
        return torch.empty(size, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
