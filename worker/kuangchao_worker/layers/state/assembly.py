"""A module of the task around tensors that are there already. Never copies them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


def assembled(make: Callable[[], nn.Module], state: Mapping[str, Any]) -> nn.Module:
    """A module whose parameters and buffers are those of a state, by name; its own are given up.

    Raises RuntimeError for the state of another model.
    """
    made = make()
    made.load_state_dict(state, assign=True)
    return made
