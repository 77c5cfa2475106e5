"""The duty that keeps the audit store small: moves days that are old to Parquet and removes those that are very old.

Moving is left to a process of its own; removing is recorded before and after like any act, and without the first
record nothing is removed. What fails is said and tried again the next time.
"""

import asyncio
import contextlib
import logging
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage, new_opid
from kuangchao_contracts.errors import AuditUnavailableError, KuangchaoError, StorageError
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.resources import CLUSTER
from kuangchao_operator.audit import cold, retention, schema, tiering

log = logging.getLogger(__name__)
MOVE_SECONDS: Final = 3_600.0
MODULE: Final = "kuangchao_operator.audit.tiering"


@dataclass(frozen=True, slots=True)
class Keeping:
    """For how long, in days."""

    hot: int = 7
    all: int = 90


class Archive:
    """One per operator."""

    def __init__(
        self, directory: Path, sink: AuditSink, clock: Callable[[], datetime], keeping: Keeping, process: str
    ) -> None:
        self._directory, self._sink, self._clock = directory, sink, clock
        self._keeping, self._process = keeping, process
        self.failed = 0
        """Days that could not be moved or removed, counted each time."""

    async def tidy(self) -> None:
        """Move and remove whatever is due."""
        for day in await asyncio.to_thread(self._due):
            await self._attempt(f"{day} is not moved", self._move(day))
        await self._attempt("leftovers are not removed", asyncio.to_thread(retention.sweep, self._directory))
        for day in await asyncio.to_thread(self._expired):
            if not await self._attempt(f"{day} is not removed", self._retire(day)):
                return  # the oldest goes first

    async def _attempt(self, what: str, step: Awaitable[None]) -> bool:
        try:
            await step
        except KuangchaoError as error:
            self.failed += 1
            log.warning("audit: %s: %s", what, error)
            return False
        return True

    def _due(self) -> list[date]:
        paths = schema.files(self._directory)
        filled = next((schema.day_of(path) for path in reversed(paths) if _has_records(path)), None)
        return tiering.due(map(schema.day_of, paths), filled, self._today(), self._keeping.hot)

    def _expired(self) -> list[date]:
        hot = map(schema.day_of, schema.files(self._directory))
        return retention.expired(hot, cold.days(self._directory), self._today(), self._keeping.all)

    async def _move(self, day: date) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            str(self._directory),
            day.isoformat(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), MOVE_SECONDS)
        except TimeoutError:
            raise StorageError(f"moving takes longer than {MOVE_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise StorageError(said.decode(errors="replace").strip()[-500:] or f"ended with {process.returncode}")
        log.info("audit: records of %s are in Parquet now", day)

    async def _retire(self, day: date) -> None:
        summary = await asyncio.to_thread(cold.summary, cold.shard_of(self._directory, day))
        intent = self._record(day, f"{summary.size} records, root {summary.root}")
        await self._sink.durable(intent)
        decision, reason = Decision.ERROR, StorageError.code
        try:
            await asyncio.to_thread(retention.bury, self._directory, day)
            decision, reason = Decision.ALLOW, ""
        finally:
            result = intent.replace(ts=self._clock(), stage=Stage.RESULT, decision=decision, reason=reason)
            # the sink writes a result as soon as it can, whether or not it can now
            with contextlib.suppress(AuditUnavailableError):
                await self._sink.durable(result)
        log.info("audit: records of %s are removed, a tombstone stays", day)

    def _record(self, day: date, detail: str) -> AuditRecord:
        return AuditRecord(
            ts=self._clock(),
            opid=new_opid(),
            stage=Stage.INTENT,
            layer=Layer.GOVERNANCE.value,
            op="audit.retire",
            resource=f"{CLUSTER}/audit/{day.isoformat()}",
            subject=self._process,
            decision=Decision.ERROR,
            detail=detail,
            process=self._process,
        )

    def _today(self) -> date:
        return self._clock().astimezone(UTC).date()


def _has_records(path: Path) -> bool:
    """Whether it has; one that cannot be read does not count, so the one before it stays."""
    try:
        with closing(schema.open_reader(path)) as reader:
            return reader.execute("SELECT 1 FROM records LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False
