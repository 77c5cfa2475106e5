"""A module of the task around tensors that are there already. Never copies them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from kuangchao_worker.parallel.naming import COMPILED


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state by the names of the model as its author wrote it: those of a checkpoint, whatever is compiled."""
    return {name.replace(COMPILED, ""): value for name, value in state.items()}


def named_as(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state by the names that the module has at present, as far as it knows them."""
    own = plain({name: name for name in module.state_dict()})
    return {own.get(name, name): value for name, value in plain(state).items()}


def assembled(make: Callable[[], nn.Module], state: Mapping[str, Any]) -> nn.Module:
    """A module whose parameters and buffers are those of a state, by name; its own are given up.

    Raises RuntimeError for the state of another model.
    """
    made = make()
    made.load_state_dict(named_as(made, state), assign=True)
    return made
