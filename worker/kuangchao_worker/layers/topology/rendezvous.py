"""Where the ranks of an attempt compare what they are about to build, before any of them connects to another.

A rank with another plan, attempt or order of groups would otherwise end in a collective that never returns. Reads and
writes the attempt's own prefix of the store only.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from torch.distributed import DistStoreError

from kuangchao_contracts.errors import ConflictError, UnavailableError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

IDENTITY: Final = "identity"
COUNT: Final = "count"
COMPLETE: Final = "complete"
NAMED: Final = 8
"""How many missing ranks an error names."""
PATIENCE: Final = 1.0
"""Seconds between two looks at whether somebody asked to stop."""


def meet(
    store: "Store", identity: str, rank: int, world: int, timeout: float, stop: Callable[[], bool] = lambda: False
) -> None:
    """Return once all ranks are there and mean to build the same.

    Raises ConflictError for a rank that is another or that is there twice, UnavailableError with the missing ranks
    when the deadline passes or `stop` says so.
    """
    agreed = store.compare_set(IDENTITY, "", identity).decode()
    if agreed != identity:
        raise ConflictError(f"rank {rank} is to build {identity}, but the gang builds {agreed}")
    if store.add(_here(rank), 1) != 1:
        raise ConflictError(f"rank {rank} is there twice in this attempt")
    if store.add(COUNT, 1) == world:
        store.set(COMPLETE, "")
    _wait(store, world, timeout, stop)


def _wait(store: "Store", world: int, timeout: float, stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            store.wait([COMPLETE], timedelta(seconds=max(0.001, min(PATIENCE, left))))
        except DistStoreError:
            if stop():
                raise UnavailableError("stopped while waiting for the other ranks") from None
            if left <= PATIENCE:
                raise UnavailableError(_missing(store, world, timeout)) from None
        else:
            return


def _missing(store: "Store", world: int, timeout: float) -> str:
    absent = [rank for rank in range(world) if not store.check([_here(rank)])]
    named = ", ".join(map(str, absent[:NAMED])) + (", ..." if len(absent) > NAMED else "")
    return f"{len(absent)} of {world} ranks did not come within {timeout:.0f} s: {named}"


def _here(rank: int) -> str:
    return f"here/{rank}"
