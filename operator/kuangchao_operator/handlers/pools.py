"""Keeps the status of every pool equal to the facts, and holds a pool back from deletion while jobs use it."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.errors import ConflictError, KuangchaoError
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.kube.cache import Cache, PoolRecord
from kuangchao_operator.kube.events import EventWriter
from kuangchao_operator.kube.pools import pool_facts, pool_nodes
from kuangchao_operator.kube.status import put_pool_status
from kuangchao_operator.kube.writer import Writer
from kuangchao_operator.layers.execution.model import Claim, Emit, PoolFacts
from kuangchao_operator.layers.resource.decide import MAX_NAMED, pool_status

RESYNC_SECONDS: Final = 30.0
DEBOUNCE_SECONDS: Final = 0.2
logger = logging.getLogger(__name__)


class PoolKeeper:
    """Writes pool status: soon after a change, and now and then in any case. Only differences are written."""

    def __init__(
        self, cache: Cache, writer: Writer, events: EventWriter, clock: Callable[[], datetime], rng: random.Random
    ) -> None:
        self._cache, self._writer, self._events = cache, writer, events
        self._clock, self._rng = clock, rng
        self._dirty = asyncio.Event()
        cache.listen(lambda _: self._dirty.set())

    async def keep(self) -> None:
        """Run until cancelled."""
        while True:
            self._dirty.clear()
            for record in self._cache.pools:
                try:
                    await self._tend(record)
                except ConflictError:
                    self._dirty.set()  # the watch is about to show what was written in between
                except KuangchaoError as error:
                    logger.warning("pool %s: %s: %s", record.pool.metadata.name, type(error).__name__, error)
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(DEBOUNCE_SECONDS)
        try:
            async with asyncio.timeout(RESYNC_SECONDS * (0.8 + 0.4 * self._rng.random())):
                await self._dirty.wait()
        except TimeoutError:
            pass

    async def _tend(self, record: PoolRecord) -> None:
        pool = record.pool
        facts = pool_facts(pool.metadata.name, self._cache)
        if facts is None:
            return
        users = in_use(facts)
        status = pool_status(
            pool,
            pool_nodes(pool.spec, self._cache),
            reserved=_devices(facts.claims),
            foreign=_devices(facts.foreign),
            waiting=len(facts.waiting),
            users=users,
            now=self._clock(),
        )
        if status != pool.status:
            self._cache.see("ResourcePool", await put_pool_status(self._writer.api, pool, status))
            if facts.deleting and users:
                event = Emit(type="Warning", reason=Reason.POOL_IN_USE, message=_refusal(users))
                await self._events.emit(_manifest(record), event)
        await self._hold(record, wanted=bool(users))

    async def _hold(self, record: PoolRecord, *, wanted: bool) -> None:
        """The finalizer is there exactly while jobs use the pool, so that an unused pool never waits for us."""
        if record.held == wanted or (wanted and record.pool.metadata.deletion_timestamp is not None):
            return
        body = await self._writer.finalizer(_manifest(record), present=wanted)
        if body is not None:
            self._cache.see("ResourcePool", body)


def in_use(facts: PoolFacts) -> list[str]:
    """Jobs that hold devices of the pool."""
    return sorted(f"{entry.namespace}/{entry.job}" for entry in facts.claims)


def _devices(claims: Iterable[Claim]) -> int:
    return sum(share.devices for entry in claims for share in entry.shares)


def _refusal(users: list[str]) -> str:
    return f"deletion waits for jobs that use the pool: {', '.join(users[:MAX_NAMED])}"


def _manifest(record: PoolRecord) -> dict[str, Any]:
    metadata = record.pool.metadata
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ResourcePool",
        "metadata": {"name": metadata.name, "uid": metadata.uid},
    }
