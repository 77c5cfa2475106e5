"""The gate's sink in front of the store: two bounded lanes, one writing thread, group commit.

Lane A (control calls, denials, system) is durable or refused; lane B (successful reads) is dropped first, and counted.
While one batch is being written the next gathers, so batches grow with load and a lone record waits for nobody.
An outage begins with the first write that fails and ends with the first that does not; a record tells of it then.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, AuditSink, Stage
from kuangchao_contracts.base import Contract
from kuangchao_operator.audit.coalesce import DenialCounter, DropCounter, StepCounter
from kuangchao_operator.audit.disk import DiskGuard, Room
from kuangchao_operator.audit.lanes import Item, Lane
from kuangchao_operator.audit.outage import Outage, room_record
from kuangchao_operator.audit.store import AuditStore, Consume, Entry
from kuangchao_operator.audit.stream import RecordStream
from kuangchao_operator.audit.tree import Head

log = logging.getLogger(__name__)
LANE_A: Final = 4_096
LANE_B: Final = 100_000 - LANE_A
"""Both lanes together hold at most 100,000 records."""
LANE_A_BYTES: Final = 8 * 1024 * 1024
LANE_B_BYTES: Final = 48 * 1024 * 1024
"""With the owed records, which have as much as lane A, 64 MiB."""
BATCH: Final = 256
FULL_WAIT_SECONDS: Final = 0.25
WRITE_TIMEOUT_SECONDS: Final = 5.0
DROPPED_EVERY_SECONDS: Final = 10.0
STEPS_EVERY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0
BLOCKED_SECONDS: Final = 5.0
T = TypeVar("T")


class StoreSink(AuditSink):
    """One per operator. Between `start` and `close` it belongs to the event loop that started it."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        process: str = "operator",
        lane_a: int = LANE_A,
        lane_b: int = LANE_B,
        guard: DiskGuard | None = None,
        stream: RecordStream | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._clock, self._process, self._monotonic = directory, clock, process, monotonic
        self._lane_a, self._lane_b = Lane(lane_a, LANE_A_BYTES), Lane(lane_b, LANE_B_BYTES)
        self._owed = Lane(lane_a, LANE_A_BYTES)
        self._steps, self._denials, self._drops = StepCounter(), DenialCounter(clock), DropCounter()
        self._guard, self._stream = guard, stream
        self._room, self._looked, self._outage = Room.ALL, 0.0, Outage()
        self._wake, self._freed = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._interrupted: tuple[AuditRecord, ...] = ()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit-writer")
        self._store: AuditStore | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def dropped(self) -> int:
        """Successful reads dropped so far."""
        return self._drops.total

    @property
    def refused(self) -> int:
        """Records of lane A refused so far."""
        return self._outage.refused

    def not_streamed(self) -> int:
        """Stored records that the stream had to leave out so far."""
        return self._stream.dropped if self._stream is not None else 0

    @property
    def blocked(self) -> bool:
        """Whether no control call could be recorded for longer than a caller should be sent here for."""
        since = self._outage.since
        return since is not None and self._monotonic() - since > BLOCKED_SECONDS

    @property
    def tree(self) -> Head:
        """The tree of the current day over all that is on disk."""
        return self.store.tree

    @property
    def interrupted(self) -> tuple[AuditRecord, ...]:
        """Intents that an earlier process left without a result; `app/recovery.py` closes them once facts are known."""
        return self._interrupted

    @property
    def store(self) -> AuditStore:
        """The store, once started."""
        if self._store is None:
            raise e.AuditUnavailableError("audit store is not open")
        return self._store

    async def start(self) -> None:
        """Open the store, see what an earlier process left open, start writing.

        Raises AuditUnavailableError, which says what is wrong with which directory; then it may be called again, and
        the record will tell of the time in between. When the store is new this waits until one-shots minted from now on
        are not mistaken for older ones (< 1 s).
        """
        loop = asyncio.get_running_loop()
        try:
            store, self._interrupted = await loop.run_in_executor(self._thread, self._open)
        except (OSError, sqlite3.Error, ValueError, TypeError, e.StorageError, e.AuditUnavailableError) as error:
            why = f"audit store {self._directory} cannot be opened: {_reason(error)}"
            self._outage.fail(self._monotonic(), why)
            raise e.AuditUnavailableError(why) from error
        self._store = store
        if self._stream is not None:
            self._stream.start(store.head[0])
        self._task = loop.create_task(self._write(), name="audit-writer")
        wait = store.epoch + 1 - self._clock()
        if 0 < wait <= 1:
            await asyncio.sleep(wait)

    def _open(self) -> tuple[AuditStore, tuple[AuditRecord, ...]]:
        store = AuditStore(self._directory, self._clock)
        try:
            return store, tuple(store.open_intents())
        except BaseException:
            store.close()
            raise

    async def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Write everything that is queued and counted, then close the store; `last` is called in between."""
        if self._task is None:
            return
        self._closing = True
        self._wake.set()
        await self._task
        if last is not None:
            await last()
        if self._stream is not None:
            self._stream.stored()
            await asyncio.to_thread(self._stream.close)
        await self._watched(self.store.close)
        self._thread.shutdown()
        self._task = self._store = None

    async def keep_checkpoint(self, head: Head, note: str) -> None:
        """Keep a signed checkpoint in the file of its day. Raises AuditUnavailableError."""
        await self._watched(lambda: self.store.keep_checkpoint(head, note))

    async def durable(self, record: AuditRecord, consume: Consume | None = None) -> None:
        """Lane A. Returns when the record is on disk, or raises.

        A disk that hangs: the record may be stored after AuditUnavailableError was raised; then it is an intent
        without a result, which the next start settles, and its one-shot is used up. Nothing was done under it.
        """
        if record.stage is Stage.DENY and not self._denials.admit(record):
            return
        keep = record.stage in {Stage.RESULT, Stage.DENY}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self._enqueue(Item(Entry(record, consume), keep, done))
            # giving up cancels `done`, by which the writer knows: who gave up will not act, so nothing need be stored
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await done
        except TimeoutError:
            self._outage.refused += 1
            raise e.AuditUnavailableError("audit store does not answer in time") from None
        except e.AuditUnavailableError:
            self._outage.refused += 1
            raise

    def best_effort(self, record: AuditRecord) -> None:
        """Lane B: a full lane or volume drops the newest record and counts it."""
        if self._task is None or self._room is not Room.ALL or not self._lane_b.has_room():
            self._drops.add(record)
            return
        self._lane_b.put(Item(Entry(record), keep=False))
        self._wake.set()

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:  # noqa: ARG002  # sink's signature
        """Count a step call; what it contained is in the log of the process that made it."""
        self._steps.add(op, resource, subject)

    def step_denied(self, record: AuditRecord) -> None:
        """Keep a denial without waiting for the disk; while the store cannot write it waits with the owed records."""
        if self._denials.admit(record):
            self._post(record)

    def _post(self, record: AuditRecord) -> None:
        self._owe(Item(Entry(record), keep=True))
        self._wake.set()

    def _owe(self, item: Item) -> None:
        """Write it as soon as the store works; beyond the limit the newest is only counted, as dropped."""
        if self._owed.has_room():
            self._owed.put(item)
        else:
            self._drops.add(item.entry.record)

    async def _enqueue(self, item: Item) -> None:
        if self._task is None or self._task.done() or self._closing:
            raise e.AuditUnavailableError("audit store is not open")
        if self._room is Room.NO_WRITES and not item.keep:
            raise e.AuditUnavailableError("audit volume is full")
        if not self._lane_a.has_room():
            await self._wait_for_room()
        self._lane_a.put(item)
        self._wake.set()

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(FULL_WAIT_SECONDS):
                while not self._lane_a.has_room():
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise e.AuditUnavailableError("too many audit records are waiting") from None

    async def _write(self) -> None:
        counted_at = told_at = self._clock()
        while True:
            now, last = self._clock(), self._closing
            await self._look()
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
        if len(self._lane_a) or self._closing:
            return
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)

    async def _look(self) -> None:
        """See how full the volume is, on the thread that may hang with it; say so when that changes what is done."""
        if self._guard is None or 0 <= self._monotonic() - self._looked < POLL_SECONDS:
            return
        self._looked = self._monotonic()
        before, self._room = self._room, await self._watched(self._guard.look)
        self._outage.fill(self._monotonic(), full=self._room is Room.NO_WRITES)
        if self._room is not before:
            record = room_record(self._now(), self._process, self._room, self._guard.space)
            log.warning("%s: %s", record.op, record.detail)
            self._post(record)

    async def _drain(self) -> None:
        # in an outage there is always something to write: that it was one
        while (batch := self._next_batch()) or self._outage.failing:
            self._freed.set()
            if not await self._store_batch(batch):
                return

    def _next_batch(self) -> list[Item]:
        batch: list[Item] = []
        for lane in (self._lane_a, self._owed, self._lane_b):
            while len(lane) and len(batch) < BATCH:
                item = lane.take()
                if not item.abandoned:
                    batch.append(item)
        return batch

    async def _store_batch(self, batch: list[Item]) -> bool:
        outage = [Entry(self._outage.record(self._now(), self._process))] if self._outage.failing else []
        entries = [*outage, *(item.entry for item in batch)]
        try:
            outcomes = await self._watched(lambda: self.store.append(entries))
        except e.AuditUnavailableError as error:
            self._fail(batch, error)
            return False
        self._outage.succeed()
        for item, outcome in zip(batch, outcomes[len(outage) :], strict=True):
            _settle(item, outcome)
        if self._stream is not None:
            self._stream.stored()
        return True

    async def _watched(self, act: Callable[[], T]) -> T:
        """Do it on the writing thread; while it hangs an outage is on."""
        with self._outage.writing(self._monotonic()):
            return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def _fail(self, batch: list[Item], error: e.AuditUnavailableError) -> None:
        if self._outage.fail(self._monotonic(), str(error)):
            log.warning("%s; %d records not stored, more may follow", error, len(batch))
        for item in batch:
            _settle(item, e.AuditUnavailableError(str(error)))
            if item.keep:
                self._owe(Item(item.entry, keep=True))
            elif item.done is None:
                self._drops.add(item.entry.record)

    def _post_all(self, records: list[AuditRecord]) -> None:
        for record in records:
            self._post(record)

    def _tell_dropped(self) -> None:
        if self._outage.failing:
            return  # such a record might find no room among the owed ones, and would itself be counted
        if records := self._drops.flush(self._now(), self._process):
            log.warning("%d successful reads have no record", sum(record.count for record in records))
            self._post_all(records)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _reason(error: Exception) -> str:
    """What is wrong, without the content of a record that cannot be read."""
    if isinstance(error, ValidationError | TypeError):
        return "it holds a record that cannot be read; see audit verify"
    return str(error) if isinstance(error, e.KuangchaoError) else f"{type(error).__name__}: {error}"


def _settle(item: Item, outcome: e.KuangchaoError | None) -> None:
    if item.done is None or item.done.done():
        return
    if outcome is None:
        item.done.set_result(None)
    else:
        item.done.set_exception(outcome)
        item.done.exception()  # the waiter may have given up: then nobody else looks at it
