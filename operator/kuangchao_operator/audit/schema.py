"""Files, tables and bytes of the audit store: one SQLite file per UTC day. No decisions."""

import hashlib
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from kuangchao_contracts import auditproof
from kuangchao_contracts.audit import AuditRecord, StoredRecord

PREFIX: Final = "audit-"
SUFFIX: Final = ".sqlite"
GENESIS: Final = auditproof.GENESIS
"""`previous` of the first record ever."""
TABLES: Final = """
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY, opid TEXT NOT NULL, ts INTEGER NOT NULL, stage TEXT NOT NULL, op TEXT NOT NULL,
    resource TEXT NOT NULL, subject TEXT NOT NULL, job TEXT NOT NULL, decision TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_ts ON records (ts);
CREATE INDEX IF NOT EXISTS by_subject ON records (subject, ts);
CREATE INDEX IF NOT EXISTS by_op ON records (op, ts);
CREATE INDEX IF NOT EXISTS by_resource ON records (resource, ts);
CREATE INDEX IF NOT EXISTS by_job ON records (job, ts);
CREATE INDEX IF NOT EXISTS by_opid ON records (opid);
CREATE TABLE IF NOT EXISTS used_jti (jti TEXT PRIMARY KEY, exp INTEGER NOT NULL, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
    size INTEGER PRIMARY KEY, root TEXT NOT NULL, note TEXT NOT NULL, peaks BLOB NOT NULL);
"""
"""A checkpoint is a signed note over the day's first `size` records; `peaks` lets their tree go on without them."""
SHARD_OP: Final = "audit.shard"
"""Operation of the first record of a day: it says how the day before ended."""
BUSY_SECONDS: Final = 2.0
MAX_FLAWS: Final = 10


def file_of(directory: Path, day: date) -> Path:
    """The file of a UTC day."""
    return directory / f"{PREFIX}{day.isoformat()}{SUFFIX}"


def day_of(path: Path) -> date:
    """The UTC day of a file."""
    return date.fromisoformat(path.name.removeprefix(PREFIX).removesuffix(SUFFIX))


def files(directory: Path) -> list[Path]:
    """All files, oldest day first. One that is named after no day is none of ours."""
    return [path for path, _ in dated(directory, PREFIX, SUFFIX)]


def dated(directory: Path, prefix: str, suffix: str = "") -> list[tuple[Path, date]]:
    """What is named after a day, oldest first."""
    found = []
    for path in sorted(directory.glob(f"{prefix}????-??-??{suffix}")):
        with suppress(ValueError):
            found.append((path, date.fromisoformat(path.name.removeprefix(prefix).removesuffix(suffix))))
    return found


def open_writer(path: Path) -> sqlite3.Connection:
    """The one writing connection to a file. Every commit is on disk when it returns (synchronous=FULL)."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(TABLES)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA query_only=1")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def flaws(reader: sqlite3.Connection) -> list[str]:
    """What is in a file that its writer did not make, and indexes that do not lead to every row.

    The rows may be whole all the same; but a query that goes by such an index finds less than there is.
    """
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(TABLES)
        foreign = sorted(_objects(reader) - _objects(ours))
    found = [f"holds a {kind} {name!r} that its writer did not make so" for kind, name, _ in foreign]
    for (said,) in reader.execute(f"PRAGMA integrity_check({MAX_FLAWS})"):
        if said != "ok":
            found.append(f"is damaged: {str(said)[:200]}")
    return found


def _objects(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and text of all tables, indexes, views and triggers."""
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema")
    return {(str(kind), str(name), str(sql)) for kind, name, sql in found}


def encode(seq: int, previous: str, record: AuditRecord) -> bytes:
    """The bytes that are stored and hashed; nothing is ever serialised anew to check them."""
    return StoredRecord(seq=seq, previous=previous, record=record).canonical()


def digest(body: bytes) -> str:
    """`previous` of the record that follows this one."""
    return hashlib.sha256(body).hexdigest()


def row(seq: int, record: AuditRecord, body: bytes) -> tuple[int | str | bytes, ...]:
    """Values of the `records` table, in its order."""
    return (
        seq,
        record.opid,
        micros(record.ts),
        record.stage.value,
        record.op,
        record.resource,
        record.subject,
        record.job,
        record.decision.value,
        body,
    )


def micros(moment: datetime) -> int:
    """Whole microseconds since 1970, exactly."""
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
