"""The vocabulary of schedules: a pass, the orders of all stages, and which piece of the model stands where. Pure."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Forward, backward, and, where a schedule splits it off, the gradients of the weights.

    Without weight passes a backward pass computes the gradients of inputs and weights.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"


class Pass(NamedTuple):
    """One micro-batch through one chunk of a stage, in one direction."""

    kind: Kind
    micro_batch: int
    chunk: int = 0


Order = tuple[Pass, ...]
Orders = tuple[Order, ...]
"""What each stage runs, first to last."""


class Placement(NamedTuple):
    """Where the pieces of the model stand: around the stages again and again, or, folded, there and back."""

    pipeline: int
    virtual: int = 1
    folded: bool = False

    @property
    def pieces(self) -> int:
        """Pieces into which the model is cut."""
        return self.pipeline * self.virtual

    def piece(self, stage: int, chunk: int) -> int:
        """The piece that is a chunk of a stage."""
        back = self.folded and chunk % 2
        return chunk * self.pipeline + (self.pipeline - 1 - stage if back else stage)

    def stage(self, piece: int) -> int:
        """The stage on which a piece stands."""
        chunk, place = divmod(piece, self.pipeline)
        return self.pipeline - 1 - place if self.folded and chunk % 2 else place


WORDS = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.WEIGHT: "weight gradients"}


def held(order: Order, virtual: int = 1) -> tuple[int, ...]:
    """Micro-batches of each chunk whose activations a stage holds when it first holds most.

    From a forward pass to the pass that ends its use: the weight gradients where they are a pass, else the backward.
    """
    last = Kind.WEIGHT if any(step.kind is Kind.WEIGHT for step in order) else Kind.BACKWARD
    now, most = [0] * virtual, (0,) * virtual
    for kind, _, chunk in order:
        now[chunk] += (kind is Kind.FORWARD) - (kind is last)
        if sum(now) > sum(most):
            most = tuple(now)
    return most
