"""What torch wraps to reduce gradients: not the model but the function that calls it, which is called once.

So a loss may call its model several times, with one part of it or another, or a method of it, and the model may give
whatever its author likes: torch looks for tensors only in what the function gives, which is the loss.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from kuangchao_worker.layers.state import mixing

Function = Callable[[nn.Module, Any], Any]


class Calling(nn.Module):
    """A model, with a forward pass that is any function of it and a batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Function, batch: Any) -> Any:
        """What the function gives."""
        with mixing.named(self.module):
            return function(self.module, batch)
