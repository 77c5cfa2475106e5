"""One lock per pool, so that two jobs never reserve the same devices. Held only from snapshot to stored status."""

import asyncio


class PoolLocks:
    """Locks by pool name, made on first use; there are as many as pools were ever named, and pools are few."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    def of(self, pool: str) -> asyncio.Lock:
        """The lock of a pool."""
        return self._locks.setdefault(pool, asyncio.Lock())
