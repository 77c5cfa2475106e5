"""Digit recognition on the 1,797 images that come with scikit-learn: small, offline, and it really learns."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from kuangchao_worker.tasks import Batch, Task
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
        right = module(images[test]).argmax(dim=1) == labels[test]
        return {"accuracy": right.float().mean().item()}

    return Task(
        model=lambda: _network(hidden, dropout), dataset=TensorDataset(images[~test], labels[~test]),
        loss=_loss, optimizer=optimizer, evaluate=evaluate,
    )


def _load() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels, dtype=torch.int64)


def _network(hidden: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(module(images), labels)
