"""The writer of the audit store: batches in, durable hash-chained records out. One writer per directory.

Synchronous on purpose: `sink.py` runs it on a thread. One-shots are used up in the transaction that stores the intent.
Every stored record is a leaf of its day's Merkle tree, which grows here and not from what the disk gives back.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, Stage, StoredRecord
from kuangchao_contracts.durable import sync_path
from kuangchao_contracts.merkle import Frontier, leaf_hash
from kuangchao_operator.audit import schema, tree
from kuangchao_operator.audit.tree import Head

JTI_GRACE_SECONDS: Final = 60
"""How long a used one-shot is remembered after its end: more than any verifier's leeway."""
SWEEP_SECONDS: Final = 60.0
WIDTHS: Final = (128, 32, 8, 4, 2, 1)
"""Rows per statement; few, since each is another prepared statement."""
ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
Row = tuple[int | str | bytes, ...]
Consume = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record to store. `consume` is (jti, exp, iat) of the one-shot that it uses up."""

    record: AuditRecord
    consume: Consume | None = None


class AuditStore:
    """Open for writing from construction to `close`."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._clock = directory, clock
        self._lock, self._swept = _lock(directory), 0.0
        try:
            for begun in schema.files(directory)[-1:]:
                # whoever made it may have been stopped, or found no room, before the tables were in it
                schema.open_writer(begun).close()
            self._seq, self._head = self._resume()
            self._day = self._newest_day()
            self._connection = self._open(self._day)
            if self._meta("store_epoch") is None:
                # The file of today is new, or was only begun. An earlier one may have been lost with the one-shots that
                # it saw: older ones are refused
                self._set_meta("store_epoch", str(int(clock())))
            self._epoch = int(self._meta("store_epoch") or "-1")
            self._tree = tree.frontier(self._connection)
            if self._tree.end == 0 and (ended := self._newest_before(self._day)) is not None:
                self._begin_day(self._connection, ended)
            self._written = Head.of(self._day, self._tree)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def head(self) -> tuple[int, str]:
        """Sequence number and hash of the newest record."""
        return self._seq, self._head

    @property
    def tree(self) -> Head:
        """The day's tree over all that is on disk. May be read on any thread."""
        return self._written

    @property
    def epoch(self) -> int:
        """One-shots issued at or before this time (unix seconds) are refused; -1 when none need be."""
        return self._epoch

    def append(self, entries: Sequence[Entry]) -> list[e.CapabilityError | None]:
        """Store a batch in one durable transaction; for each entry None, or why it was not stored.

        Raises AuditUnavailableError when nothing of the batch could be stored.
        """
        try:
            self._roll_over()
        except (sqlite3.Error, OSError, e.StorageError) as error:
            raise e.AuditUnavailableError(f"audit store cannot begin a day: {type(error).__name__}") from error
        seq, head, grown = self._seq, self._head, self._tree.copy()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._forget_expired()
            rows: list[Row] = []
            outcomes = [self._add(entry, rows) for entry in entries]
            _insert(self._connection, rows)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._seq, self._head, self._tree = seq, head, grown
            self._rollback()
            raise e.AuditUnavailableError(f"audit store cannot write: {type(error).__name__}") from error
        self._written = Head.of(self._day, self._tree)
        return outcomes

    def keep_checkpoint(self, head: Head, note: str) -> None:
        """Keep a signed checkpoint in the file of its day. Raises AuditUnavailableError."""
        try:
            if head.day == self._day:
                tree.keep(self._connection, head, note)
                return
            with closing(schema.open_writer(schema.file_of(self._directory, head.day))) as connection:
                tree.keep(connection, head, note)
        except sqlite3.Error as error:
            raise e.AuditUnavailableError(f"audit store cannot keep a checkpoint: {type(error).__name__}") from error

    def close(self) -> None:
        """Close the file and let another writer in."""
        self._connection.close()
        os.close(self._lock)

    def open_intents(self) -> list[AuditRecord]:
        """Intents of this day and the one before that have no result in either: their process ended before."""
        intents: dict[str, bytes] = {}
        for path in schema.files(self._directory)[-2:]:
            reader = schema.open_reader(path)
            try:
                query = "SELECT opid, stage, body FROM records WHERE stage IN ('intent', 'result') ORDER BY seq"
                for opid, stage, body in reader.execute(query):
                    if stage == Stage.INTENT.value:
                        intents[opid] = body
                    else:
                        intents.pop(opid, None)
            finally:
                reader.close()
        return [StoredRecord.model_validate_json(body).record for body in intents.values()]

    def _add(self, entry: Entry, rows: list[Row]) -> e.CapabilityError | None:
        if entry.consume is not None:
            jti, exp, iat = entry.consume
            if iat <= self._epoch:
                return e.ReplayStoreLostError("one-shot is older than the store of used ones")
            used = self._connection.execute(
                "INSERT OR IGNORE INTO used_jti VALUES (?, ?, ?)", (jti, exp, self._seq + 1)
            )
            if used.rowcount == 0:
                return e.ReplayedTokenError("one-shot was used before")
        rows.append(self._next(entry.record))
        return None

    def _next(self, record: AuditRecord) -> Row:
        """The record as the next row, by which chain and tree have grown."""
        seq = self._seq + 1
        body = schema.encode(seq, self._head, record)
        self._seq, self._head = seq, schema.digest(body)
        self._tree.append(leaf_hash(body))
        return schema.row(seq, record, body)

    def _begin_day(self, connection: sqlite3.Connection, ended: Head) -> None:
        """Write the first record of a day, which says how the one before ended."""
        self._tree = Frontier()
        _insert(connection, [self._next(tree.shard_record(datetime.fromtimestamp(self._clock(), UTC), ended.end()))])

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next append fails in the same way and says so

    def _roll_over(self) -> None:
        """Go to the file of a new day, taking used one-shots along. A clock that jumps back changes nothing."""
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        if today <= self._day:
            return
        ended = Head.of(self._day, self._tree) if self._tree.end else self._newest_before(today)
        following = self._open(today)
        seq, head, grown = self._seq, self._head, self._tree
        try:
            used = self._connection.execute("SELECT jti, exp, seq FROM used_jti WHERE exp > ?", (self._cutoff(),))
            following.execute("BEGIN IMMEDIATE")
            following.executemany("INSERT OR IGNORE INTO used_jti VALUES (?, ?, ?)", used.fetchall())
            following.execute("INSERT OR REPLACE INTO meta VALUES ('store_epoch', ?)", (str(self._epoch),))
            if ended is not None:
                self._begin_day(following, ended)
            following.execute("COMMIT")
        except sqlite3.Error:
            self._seq, self._head, self._tree = seq, head, grown
            following.close()
            raise
        self._connection.close()
        self._connection, self._day = following, today
        self._written = Head.of(today, self._tree)

    def _forget_expired(self) -> None:
        now = self._clock()
        if not 0 <= now - self._swept < SWEEP_SECONDS:
            self._connection.execute("DELETE FROM used_jti WHERE exp <= ?", (self._cutoff(),))
            self._swept = now

    def _cutoff(self) -> int:
        return int(self._clock()) - JTI_GRACE_SECONDS

    def _resume(self) -> tuple[int, str]:
        for path in reversed(schema.files(self._directory)):
            reader = schema.open_reader(path)
            try:
                last = reader.execute("SELECT seq, body FROM records ORDER BY seq DESC LIMIT 1").fetchone()
            finally:
                reader.close()
            if last is not None:
                return int(last[0]), schema.digest(last[1])
        return 0, schema.GENESIS

    def _newest_before(self, day: date) -> Head | None:
        """The newest earlier day that has records."""
        for path in reversed(schema.files(self._directory)):
            if schema.day_of(path) < day:
                with closing(schema.open_reader(path)) as reader:
                    found = tree.frontier(reader)
                if found.end:
                    return Head.of(schema.day_of(path), found)
        return None

    def _newest_day(self) -> date:
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        known = schema.files(self._directory)
        return max(today, schema.day_of(known[-1])) if known else today

    def _open(self, day: date) -> sqlite3.Connection:
        connection = schema.open_writer(schema.file_of(self._directory, day))
        sync_path(self._directory)
        return connection

    def _meta(self, key: str) -> str | None:
        found = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def _set_meta(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _insert(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Insert many rows by few statements.

    Each statement gives the interpreter to the event loop's thread, which under load keeps it for milliseconds.
    """
    at = 0
    while at < len(rows):
        width = next(width for width in WIDTHS if width <= len(rows) - at)
        values = [value for row in rows[at : at + width] for value in row]
        connection.execute(f"INSERT INTO records VALUES {', '.join([ROW] * width)}", values)  # noqa: S608  # question marks
        at += width


def _lock(directory: Path) -> int:
    """Keep a second writer out for as long as this process lives. Raises AuditUnavailableError, OSError."""
    descriptor = os.open(directory / "writer.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise  # the file system has no locks
        raise e.AuditUnavailableError("another process writes to this audit store") from None
    return descriptor
