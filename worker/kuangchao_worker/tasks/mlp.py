"""A perceptron on made-up numbers whose size sets the length of a step: for benches and fault tests."""

import itertools
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import TensorDataset

from kuangchao_worker.tasks import Batch, Task
from kuangchao_worker.tasks.options import Options


def mlp(args: dict[str, str]) -> Task:
    """Fit a random linear map. Arguments: samples, features, hidden, layers, dropout, horizon (steps of the cosine)."""
    options = Options(args)
    samples = options.integer("samples", 512)
    features = options.integer("features", 16)
    hidden = options.integer("hidden", 64)
    layers = options.integer("layers", 2)
    dropout = options.real("dropout", 0.1)
    horizon = options.integer("horizon", 1000)
    options.done()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, features, generator=generator)
    targets = inputs @ torch.randn(features, 1, generator=generator)

    def network() -> nn.Module:
        widths = [features, *[hidden] * layers]
        blocks = [nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in itertools.pairwise(widths)]
        return nn.Sequential(*blocks, nn.Linear(widths[-1], 1))

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=1e-2)

    def scheduler(optimizer: Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimizer, T_max=horizon)

    data = TensorDataset(inputs, targets)
    return Task(model=network, dataset=data, loss=_loss, optimizer=optimizer, scheduler=scheduler)


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(module(inputs), targets)
