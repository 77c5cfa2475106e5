"""The gate's sink in front of the store: two bounded lanes, one writing thread, group commit.

Lane A (control calls, denials, system) is durable or refused; lane B (successful reads) is dropped first, and counted.
While one batch is being written the next gathers, so batches grow with load and a lone record waits for nobody.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage
from kuangchao_contracts.base import Contract
from kuangchao_operator.audit.coalesce import DenialCounter, StepCounter, dropped_record
from kuangchao_operator.audit.store import AuditStore, Consume, Entry

log = logging.getLogger(__name__)
LANE_A: Final = 4_096
LANE_B: Final = 100_000 - LANE_A
"""Both lanes together hold at most 100,000 records."""
BATCH: Final = 256
FULL_WAIT_SECONDS: Final = 0.25
WRITE_TIMEOUT_SECONDS: Final = 5.0
DROPPED_EVERY_SECONDS: Final = 10.0
STEPS_EVERY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Item:
    """A record on its way. `done` None: nobody waits for it. `keep`: it tells of what has happened, so try again."""

    entry: Entry
    keep: bool
    done: asyncio.Future[None] | None = None


class StoreSink(AuditSink):
    """One per operator. Between `start` and `close` it belongs to the event loop that started it."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        process: str = "operator",
        lane_a: int = LANE_A,
        lane_b: int = LANE_B,
    ) -> None:
        self._directory, self._clock, self._process = directory, clock, process
        self._limit_a, self._limit_b = lane_a, lane_b
        self._lane_a: deque[_Item] = deque()
        self._lane_b: deque[_Item] = deque()
        self._owed: deque[_Item] = deque()
        self._steps, self._denials = StepCounter(), DenialCounter(clock)
        self._dropped, self._dropped_told = 0, 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit-writer")
        self._store: AuditStore | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def dropped(self) -> int:
        """Successful reads dropped so far."""
        return self._dropped

    @property
    def store(self) -> AuditStore:
        """The store, once started."""
        if self._store is None:
            raise e.AuditUnavailableError("audit store is not open")
        return self._store

    async def start(self) -> None:
        """Open the store, settle what an earlier process left open, start writing. Raises AuditUnavailableError.

        When the store is new this waits until one-shots minted from now on are not mistaken for older ones (< 1 s).
        """
        loop = asyncio.get_running_loop()
        try:
            self._store = await loop.run_in_executor(self._thread, AuditStore, self._directory, self._clock)
            await loop.run_in_executor(self._thread, self._store.settle_interrupted)
        except (OSError, sqlite3.Error) as error:
            raise e.AuditUnavailableError(f"audit store cannot open: {type(error).__name__}") from error
        self._task = loop.create_task(self._write(), name="audit-writer")
        wait = self._store.epoch + 1 - self._clock()
        if 0 < wait <= 1:
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Write everything that is queued and counted, then close the store."""
        if self._task is None:
            return
        self._closing = True
        self._wake.set()
        await self._task
        await asyncio.get_running_loop().run_in_executor(self._thread, self.store.close)
        self._thread.shutdown()
        self._task = self._store = None

    async def durable(self, record: AuditRecord, consume: Consume | None = None) -> None:
        """Lane A. Returns when the record is on disk, or raises.

        A disk that hangs: the record may be stored after AuditUnavailableError was raised; then it is an intent
        without a result, which the next start settles, and its one-shot is used up. Nothing was done under it.
        """
        if record.stage is Stage.DENY and record.decision is Decision.DENY and not self._denials.admit(record):
            return
        keep = record.stage in {Stage.RESULT, Stage.DENY}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._enqueue(_Item(Entry(record, consume), keep, done))
        try:
            await asyncio.wait_for(asyncio.shield(done), WRITE_TIMEOUT_SECONDS)
        except TimeoutError:
            raise e.AuditUnavailableError("audit store does not answer in time") from None
        finally:
            if not keep:
                done.cancel()  # whoever gave up will not act, so what is still queued need not be stored

    def best_effort(self, record: AuditRecord) -> None:
        """Lane B: a full lane drops the newest record and counts it."""
        if self._task is None or len(self._lane_b) >= self._limit_b:
            self._dropped += record.count
            return
        self._lane_b.append(_Item(Entry(record), keep=False))
        self._wake.set()

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:  # noqa: ARG002  # sink's signature
        """Count a step call; what it contained is in the log of the process that made it."""
        self._steps.add(op, resource, subject)

    def step_denied(self, record: AuditRecord) -> None:
        """Keep a denial without waiting for the disk; while the store cannot write it waits with the owed records."""
        if self._denials.admit(record):
            self._post(record)

    def _post(self, record: AuditRecord) -> None:
        self._owe(_Item(Entry(record), keep=True))
        self._wake.set()

    def _owe(self, item: _Item) -> None:
        """Write it as soon as the store works; beyond the limit the newest is only counted, as dropped."""
        if len(self._owed) < self._limit_a:
            self._owed.append(item)
        else:
            self._dropped += item.entry.record.count

    async def _enqueue(self, item: _Item) -> None:
        if self._task is None or self._task.done() or self._closing:
            raise e.AuditUnavailableError("audit store is not open")
        if len(self._lane_a) >= self._limit_a:
            await self._wait_for_room()
        self._lane_a.append(item)
        self._wake.set()

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(FULL_WAIT_SECONDS):
                while len(self._lane_a) >= self._limit_a:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise e.AuditUnavailableError("too many audit records are waiting") from None

    async def _write(self) -> None:
        counted_at = told_at = self._clock()
        while True:
            now, last = self._clock(), self._closing
            if self._denials.due() or last:
                self._post_all(self._denials.flush())
            if last or not 0 <= now - told_at < DROPPED_EVERY_SECONDS:
                told_at = now
                self._tell_dropped()
            if last or not 0 <= now - counted_at < STEPS_EVERY_SECONDS:
                counted_at = now
                self._post_all(self._steps.flush(self._now(), self._process))
            await self._drain()
            if last:
                return
            await self._rest()

    async def _rest(self) -> None:
        if self._lane_a or self._closing:
            return
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)

    async def _drain(self) -> None:
        while batch := self._next_batch():
            self._room.set()
            if not await self._store_batch(batch):
                return

    def _next_batch(self) -> list[_Item]:
        batch: list[_Item] = []
        for lane in (self._lane_a, self._owed, self._lane_b):
            while lane and len(batch) < BATCH:
                item = lane.popleft()
                if item.done is None or not item.done.done():
                    batch.append(item)
        return batch

    async def _store_batch(self, batch: list[_Item]) -> bool:
        loop = asyncio.get_running_loop()
        entries = [item.entry for item in batch]
        try:
            outcomes = await loop.run_in_executor(self._thread, self.store.append, entries)
        except e.AuditUnavailableError as error:
            log.warning("%s; %d records not stored", error, len(batch))
            self._fail(batch, error)
            return False
        for item, outcome in zip(batch, outcomes, strict=True):
            _settle(item, outcome)
        return True

    def _fail(self, batch: list[_Item], error: e.AuditUnavailableError) -> None:
        for item in batch:
            _settle(item, e.AuditUnavailableError(str(error)))
            if item.keep:
                self._owe(_Item(item.entry, keep=True))
            elif item.done is None:
                self._dropped += item.entry.record.count

    def _post_all(self, records: list[AuditRecord]) -> None:
        for record in records:
            self._post(record)

    def _tell_dropped(self) -> None:
        if self._dropped > self._dropped_told:
            self._post(dropped_record(self._now(), self._process, self._dropped - self._dropped_told))
            self._dropped_told = self._dropped

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _settle(item: _Item, outcome: e.KuangchaoError | None) -> None:
    if item.done is None or item.done.done():
        return
    if outcome is None:
        item.done.set_result(None)
    else:
        item.done.set_exception(outcome)
        item.done.exception()  # the waiter may have given up: then nobody else looks at it
