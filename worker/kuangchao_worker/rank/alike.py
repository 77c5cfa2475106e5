"""What all ranks must begin with alike, before any of them splits or trains its model."""

import hashlib
from typing import Final, Protocol

import torch
from torch import nn

from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.layers.execution.data import size_of
from kuangchao_worker.layers.state.marks import MADE_BY
from kuangchao_worker.rank.runnable import whole
from kuangchao_worker.tasks import Task

COMPARED: Final = 64
"""Elements of each parameter by which ranks compare what they begin with."""


class Store(Protocol):
    """What state begins with."""

    module: nn.Module
    hyperparameters: str


def require_alike(agreement: Agreement, store: Store, task: Task, plan: ParallelPlan) -> None:
    """Raise RanksDifferError where ranks do not begin with the same. All ranks must call, before any splits a model."""
    agreement.same({**_likeness(store.module, task), "optimizer with hyperparameters": store.hyperparameters})
    agreement.near(_first_weights(store.module, plan), "first weights of")


def _likeness(module: nn.Module, task: Task) -> dict[str, str]:
    """What must be alike on all ranks before any of them splits or trains it, by what people call it."""
    named = (*module.named_parameters(), *module.named_buffers())
    # who makes a parameter as well: ranks that did not agree on that would wait for one another
    shapes = [[name, list(tensor.shape), str(tensor.dtype), getattr(tensor, MADE_BY, None)] for name, tensor in named]
    model = hashlib.sha256(canonical_json(shapes)).hexdigest()
    # links would wait for gradients that a rank does not compute
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    found = {
        "model": model,
        "choice of frozen parameters": str(frozen),
        "length of the dataset": str(size_of(task.dataset)),
    }
    if any(hasattr(tensor, MADE_BY) for _, tensor in named):
        # what ranks do not make they cannot compare, but they have all drawn the same numbers
        drawn = torch.get_rng_state().numpy().tobytes()
        found["random generator after the first weights"] = hashlib.sha256(drawn).hexdigest()
    return found


def _first_weights(module: nn.Module, plan: ParallelPlan) -> dict[str, torch.Tensor]:
    """Some elements of each parameter, where the plan splits the model: each rank then goes on from those that it made
    itself, but DDP gives all ranks those of rank 0, and what one rank makes for all are the same.
    """
    if whole(plan):
        return {}
    own = {name: parameter for name, parameter in module.named_parameters() if not hasattr(parameter, MADE_BY)}
    return {name: parameter.detach().flatten()[:COMPARED] for name, parameter in own.items()}
