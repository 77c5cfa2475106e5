"""Whether a checkpoint is of the model and the optimizer that are to go on from it. Pure.

Asked where something could not be restored: of a volume that fails, or a peer that is lost, nothing differs here.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from kuangchao_contracts.errors import InvalidInputError

Shapes = Mapping[str, tuple[int, ...]]
MADE_OF: Final = "a checkpoint goes on with the model that it was made of"


def shapes(state: Mapping[str, Any]) -> Shapes:
    """Shapes of the tensors of a state; of one that is not there yet, nothing is known."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: tuple(value.shape) for name, value in tensors.items() if not is_lazy(value)}


def same_model(path: str, held: Shapes, asked: Shapes, *, every: Collection[str] | None = None) -> None:
    """Raise InvalidInputError for the first tensor that the model has and the checkpoint has not, or in another shape.

    `every`: names of all that the model has on any rank, so that the checkpoint must hold nothing else either.
    """
    for name, shape in asked.items():
        if name not in held:
            raise InvalidInputError("task.model", name, f"is not in {path}; {MADE_OF}")
        if held[name] != shape:
            why = f"is of shape {shape}, and in {path} of {held[name]}; {MADE_OF}"
            raise InvalidInputError("task.model", name, why, held[name])
    for name in held:
        if every is not None and name not in every:
            raise InvalidInputError("task.model", name, f"is in {path} only; {MADE_OF}")


def same_optimizer(path: str, held: Sequence[int], asked: Sequence[int]) -> None:
    """Raise InvalidInputError unless the optimizer updates as many parameters in as many groups as that of the
    checkpoint: it knows them by their number."""
    if list(held) != list(asked):
        why = f"parameters in its groups, and {list(held)} in {path}; a checkpoint goes on with its own optimizer"
        raise InvalidInputError("task.optimizer", list(asked), why, list(held))


def group_sizes(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    """How many parameters each group of an optimizer has."""
    return [len(group["params"]) for group in groups]
