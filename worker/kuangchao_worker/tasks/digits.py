"""Digit recognition on the 1,797 images that come with scikit-learn: small, offline, and it really learns."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from kuangchao_worker.tasks import Batch, Task, TaskNotFoundError
from kuangchao_worker.tasks.options import Options

TEST_SHARE = 5
"""One image in five is for the test."""


def digits(args: dict[str, str]) -> Task:
    """Train a perceptron on 8x8 digits. Arguments: hidden, learningRate, dropout."""
    options = Options(args)
    hidden = options.integer("hidden", 128)
    rate = options.real("learningRate", 3e-3)
    dropout = options.real("dropout", 0.1)
    options.done()
    images, labels = _load()
    test = torch.arange(len(labels)) % TEST_SHARE == 0

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=rate)

    def evaluate(module: nn.Module) -> dict[str, float]:
        device = next(module.parameters()).device
        right = module(images[test].to(device)).argmax(dim=1) == labels[test].to(device)
        return {"accuracy": right.float().mean().item()}

    return Task(
        model=lambda: _network(hidden, dropout),
        dataset=TensorDataset(images[~test], labels[~test]),
        loss=_loss,
        optimizer=optimizer,
        evaluate=evaluate,
    )


def _load() -> tuple[torch.Tensor, torch.Tensor]:
    # scikit-learn brings the images; importing it would cost each rank seconds, so only its file is read
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise TaskNotFoundError("the digits task needs the images of scikit-learn, which is not installed")
    table = np.loadtxt(
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float32
    )
    return torch.from_numpy(table[:, :64]) / 16, torch.from_numpy(table[:, 64]).to(torch.int64)


def _network(hidden: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(module(images), labels)
