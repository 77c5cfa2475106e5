"""A module of the task around tensors that are there already. Never copies them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import nn

COMPILED: Final = "_orig_mod."
"""What `torch.compile` puts before the names of a module that it wraps."""


def assembled(make: Callable[[], nn.Module], state: Mapping[str, Any]) -> nn.Module:
    """A module whose parameters and buffers are those of a state, by name; its own are given up.

    Raises RuntimeError for the state of another model.
    """
    made = make()
    # names in pieces are torch's own, which leave out that a part of the model is compiled
    own = {name.replace(COMPILED, ""): name for name in made.state_dict()}
    made.load_state_dict({own.get(name, name): value for name, value in state.items()}, assign=True)
    return made
