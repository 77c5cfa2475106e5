"""What somebody writes who puts something between algorithm and state: a `Codec`, named by an entry point.

Group `kuangchao.plugins`; the entry's name is the plug-in's, its value a function `(options: dict[str, str]) -> Codec`.
A codec is values in, values out. It must never open a process group, a link or a file, and never sees the optimizer:
how payloads travel is the business of state. `conformance.CodecConformance` holds the tests that any codec must pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

ENTRY_POINTS: Final = "kuangchao.plugins"


@dataclass(frozen=True)
class Seat:
    """Whose gradients a codec sees: all that its random numbers may depend on, beside step and name."""

    rank: int = 0
    world: int = 1
    seed: int = 0


class Codec(ABC):
    """Codes this rank's share of the mean gradient, parameter by parameter.

    The mean over W ranks is the sum of what `decode` makes of W payloads, each coded from a gradient that was divided
    by W before. The same calls give the same bytes, on any machine of the same kind.
    """

    version: ClassVar[str]
    """Ranks with different versions do not start."""
    summable: ClassVar[bool] = False
    """Whether payloads may be added up on the way: the sum is decoded once. Else each is sent to all and decoded."""

    def seated(self, seat: Seat) -> None:  # noqa: B027 - most codecs need not know
        """Told once, before any gradient."""

    @abstractmethod
    def encode(self, step: int, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The payload of a flat gradient: one dimension, length and type fixed by the gradient's length and type.

        Called once for each parameter in each step. A gradient that is not finite must come out as one that is not,
        and leave the memory as it is.
        """

    @abstractmethod
    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor:
        """The flat gradient of so many elements."""

    def memory(self) -> Mapping[str, torch.Tensor]:
        """What the codec remembers from step to step, by parameter name; it goes into checkpoints. These are live."""
        return {}

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Replace the memory: of the same shape under every name that `expected` gave.

        Raises ValueError for a name or shape that is not its own.
        """
        if memory:
            raise ValueError(f"{min(memory)}: this codec remembers nothing")

    def expect(self, elements: Mapping[str, int]) -> None:  # noqa: B027 - most codecs remember nothing
        """Told once, before any gradient: the parameters to come and their lengths."""
