"""The user's loss where the model is cut into stages: its input on the first stage, its value on the last.

User code calls a module once and computes a loss from what it gives. Here that module is a stand-in: one that notes
what it is called with, or one that gives what the last stage has computed. The task never knows.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.tasks import Task


class _Called(Exception):  # noqa: N818 - no error: it ends the loss function once its input is known
    def __init__(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.given, self.named = given, named


class _Noting(nn.Module):
    def forward(self, *given: Any, **named: Any) -> Any:
        raise _Called(given, named)


class _Giving(nn.Module):
    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output
        self.calls = 0

    def forward(self, *given: Any, **named: Any) -> Any:
        del given, named
        self.calls += 1
        return self._output


def model_input(task: Task, batch: Any) -> torch.Tensor:
    """What the task calls its model with. Raises InvalidInputError unless that is one tensor."""
    try:
        task.loss(_Noting(), batch)
    except _Called as call:
        given = (*call.given, *call.named.values())
        if len(given) == 1 and isinstance(given[0], torch.Tensor):
            return given[0]
        raise InvalidInputError("task.loss", len(given), "a pipeline's model takes one tensor", 1) from None
    raise InvalidInputError("task.loss", 0, "did not call the model", 1)


def loss_of(task: Task, output: torch.Tensor, batch: Any) -> torch.Tensor:
    """The task's loss for an output of the model. Raises InvalidInputError if it calls the model more than once."""
    given = _Giving(output)
    loss = task.loss(given, batch)
    if given.calls != 1:
        raise InvalidInputError("task.loss", given.calls, "calls of the model; a pipeline's is called once", 1)
    return _met(single(loss), lambda node: node is output.grad_fn or getattr(node, "variable", None) is output)


def on_model(loss: Any) -> torch.Tensor:
    """The loss of a micro-batch. Raises InvalidInputError as `single`, and where it leads back to no weight.

    Whose backward pass calls torch's own functions alone is looked through; what others hide, as a checkpoint hides the
    layers that it computes once more, is taken for the model's.
    """
    return _met(single(loss), _of_model)


def _of_model(node: object) -> bool:
    return isinstance(node, BackwardCFunction) or isinstance(getattr(node, "variable", None), nn.Parameter)


def _met(loss: torch.Tensor, found: Callable[[Node], bool]) -> torch.Tensor:
    """The loss, if its way back comes to what is looked for; a model has weights near its output, so few are seen."""
    seen, due = {loss.grad_fn}, deque([loss.grad_fn])
    while due:
        node = due.popleft()
        if node is None:
            continue
        if found(node):
            return loss
        after = [following for following, _ in node.next_functions if following not in seen]
        seen.update(after)
        due += after
    why = "has a gradient that leads to nothing of the model"
    raise InvalidInputError("task.loss", loss.item(), why, "what is computed from the model's output")


def single(loss: Any) -> torch.Tensor:
    """The loss of a micro-batch. Raises InvalidInputError unless it is one real number that the model led to.

    One that it did not lead to has no gradient: a pipeline would train without it, and ranks that split the model in
    another way would wait for the one that goes back through nothing.
    """
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        given = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidInputError("task.loss", given, "is not a tensor of one element", "the mean of the losses")
    if loss.is_complex():
        raise InvalidInputError("task.loss", loss.item(), "is no real number", "its real part")
    if loss.grad_fn is None:
        raise InvalidInputError("task.loss", loss.item(), "has no gradient", "what is computed from the model's output")
    return loss
