"""`from kuangchao_worker.weights import weights`: code of a task reads weights of one step while training goes on.

For measurements of its own, also in threads of its own. Never gives the weights that training writes to: those are the
state layer's, which puts itself behind this (`readable`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

import torch

from kuangchao_contracts.errors import UnavailableError

WAIT_SECONDS: Final = 60.0
"""How long a reader waits for an update that is being made."""


class Weights(NamedTuple):
    """Parameters as they were after a step: all of one step, and none of another."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    """By name, in main memory. Where the plan splits the model: this rank's pieces. Writing to them is refused by
    UnleasedWriteError. What is kept must be cloned."""


Reader = Callable[[float], AbstractContextManager[Weights]]
_reader: Reader | None = None


def weights(timeout: float = WAIT_SECONDS) -> AbstractContextManager[Weights]:
    """The newest snapshot, made now if the last one is 10 steps old or more; it stays as it is inside the `with`.

    Who holds it longer than that holds it for all: others get the same until it is let go. Raises UnavailableError
    outside a rank that trains, and where an update takes longer than `timeout` seconds.
    """
    if _reader is None:
        raise UnavailableError("weights can be read in a rank that trains, and this process is none")
    return _reader(timeout)


@contextmanager
def readable(reader: Reader) -> Iterator[None]:
    """Around training: `weights` asks this."""
    global _reader  # noqa: PLW0603 - one process trains one job
    _reader = reader
    try:
        yield
    finally:
        _reader = None
