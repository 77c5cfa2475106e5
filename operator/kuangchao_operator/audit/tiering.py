"""Moves a day of the audit store from SQLite to Parquet. A process of its own, so that the operator neither waits nor
grows: `python -m kuangchao_operator.audit.tiering DIRECTORY DAY`.

The SQLite file goes last, once every record was read back from the Parquet files and gave the root that was signed.
Stopped anywhere, the next run finishes or starts over; at no moment is a record in neither place, and a query that
finds it in both takes one.
"""

import csv
import fcntl
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kuangchao_contracts.audit import StoredRecord
from kuangchao_contracts.durable import sync_path
from kuangchao_contracts.errors import KuangchaoError, StorageError
from kuangchao_contracts.merkle import Frontier, leaf_hash
from kuangchao_operator.audit import cold, schema, tree
from kuangchao_operator.audit.cold import Cold, Row, ShardSummary

PART_ROWS: Final = 65_536
PART_BYTES: Final = 64 * 1024 * 1024
"""A Parquet file ends at either, which bounds the memory and the extra disk that a move takes."""
UNFINISHED: Final = ".unfinished-"
LOCK: Final = ".lock"
NICE: Final = 10


def due(hot: Iterable[date], newest_filled: date | None, today: date, hot_days: int) -> list[date]:
    """Days to move. The newest file with a record stays whatever its age: the chain is continued from it."""
    limit = today - timedelta(days=hot_days)
    return sorted(day for day in hot if newest_filled is not None and day <= limit and day < newest_filled)


def move(directory: Path, day: date) -> ShardSummary:
    """Move one day. Raises StorageError, and the SQLite file is still there; moving again is always right."""
    with _alone(directory):
        source, target = schema.file_of(directory, day), cold.shard_of(directory, day)
        unfinished = target.with_name(UNFINISHED + target.name)
        if unfinished.exists():
            shutil.rmtree(unfinished)
        if not source.exists():
            return _finished(directory, target)
        try:
            _settle(source)
            wanted = _summary(source, day)
            if target.exists():
                _require(directory, target, wanted)
            else:
                unfinished.mkdir()
                _convert(directory, source, unfinished)
                cold.write_summary(unfinished / cold.SUMMARY, wanted)
                _require(directory, unfinished, wanted)
                _publish(unfinished, target)
            _drop(source)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{source.name} cannot be moved: {type(error).__name__}: {error}") from error
        return wanted


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One move at a time: a process that outlived its operator may still be at it. Raises StorageError."""
    (directory / cold.FOLDER).mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory / cold.FOLDER / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StorageError("another process moves a day of this store") from None
    finally:
        os.close(descriptor)


def _finished(directory: Path, target: Path) -> ShardSummary:
    if not target.exists():
        raise StorageError(f"{target.name.removeprefix(cold.DAY)} is neither hot nor cold in {directory.name}")
    return cold.summary(target)


def _settle(source: Path) -> None:
    """Put everything into the one file: a reader that opened it keeps all of it when its name goes away."""
    with closing(sqlite3.connect(source, timeout=schema.BUSY_SECONDS, isolation_level=None)) as connection:
        if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] != 0:
            raise StorageError(f"{source.name} is being read; it is moved another time")
        connection.execute("PRAGMA journal_mode=DELETE")


def _summary(source: Path, day: date) -> ShardSummary:
    """What the Parquet files must come to, which is what was signed. Raises StorageError."""
    frontier, first, last, body = Frontier(), 0, 0, b""
    with closing(schema.open_reader(source)) as reader:
        for seq, body in reader.execute("SELECT seq, body FROM records ORDER BY seq"):
            frontier.append(leaf_hash(body))
            first, last = first or seq, seq
        signed = tree.newest(reader)
    root = frontier.root().hex()
    if signed is not None and (signed.size, signed.root) != (frontier.end, root):
        raise StorageError(f"{source.name}: its newest checkpoint is not over all of its {frontier.end} records")
    return ShardSummary(
        day=day,
        size=frontier.end,
        root=root,
        checkpoint=signed.note if signed else "",
        first=first,
        last=last,
        head=schema.digest(body) if last else "",
    )


def _convert(directory: Path, source: Path, unfinished: Path) -> None:
    with closing(schema.open_reader(source)) as reader, Cold(directory) as writer:
        rows = reader.execute(f"SELECT {', '.join(cold.COLUMNS)} FROM records ORDER BY seq")  # noqa: S608  # our names
        number, table = 0, unfinished / "rows.csv"
        while _write_rows(table, rows):
            part = unfinished / f"part-{number:05d}.parquet"
            writer.write_part(table, part)
            sync_path(part)
            number += 1
        table.unlink()


def _write_rows(table: Path, rows: Iterator[Row]) -> int:
    """Rows of the next part as text; how many."""
    count = size = 0
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        while count < PART_ROWS and size < PART_BYTES and (row := next(rows, None)) is not None:
            body = row[-1]
            assert isinstance(body, bytes), "the column is a BLOB"
            writer.writerow((*row[:-1], body.decode()))
            count, size = count + 1, size + len(body)
    return count


def _require(directory: Path, shard: Path, wanted: ShardSummary) -> None:
    """Check every record of a shard and what they come to. Raises StorageError."""
    frontier, seq, head = Frontier(), wanted.first - 1, ""
    with Cold(directory) as reader:
        for row in reader.rows(shard):
            head = _check(row, seq, head)
            seq += 1
            frontier.append(leaf_hash(bytes(row[-1])))  # type: ignore[arg-type]  # the body, as `_check` has seen
    if (frontier.end, frontier.root().hex(), head) != (wanted.size, wanted.root, wanted.head):
        raise StorageError(f"{shard.name} does not hold what {wanted.day} held; the SQLite file stays")


def _check(row: Row, seq: int, head: str) -> str:
    """Check a record against the one before; its hash."""
    body = row[-1]
    try:
        assert isinstance(body, bytes), "a BLOB comes back as bytes"
        stored = StoredRecord.model_validate_json(body)
    except ValidationError:
        raise StorageError(f"record {seq + 1} cannot be parsed; the SQLite file stays") from None
    follows = stored.seq == seq + 1 and head in {"", stored.previous}
    if not follows or schema.row(stored.seq, stored.record, body) != row:
        raise StorageError(f"record {seq + 1} does not follow or differs from its columns; the SQLite file stays")
    return schema.digest(body)


def _publish(unfinished: Path, target: Path) -> None:
    sync_path(unfinished)
    unfinished.rename(target)
    sync_path(target.parent)


def _drop(source: Path) -> None:
    source.unlink()
    for leftover in (f"{source.name}-wal", f"{source.name}-shm"):
        source.with_name(leftover).unlink(missing_ok=True)
    sync_path(source.parent)


def main(arguments: list[str]) -> int:
    """Move the day and print its summary; 1 and a line on standard error when it stays."""
    os.nice(NICE)
    directory, day = arguments
    try:
        done = move(Path(directory), date.fromisoformat(day))
    except KuangchaoError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(done.wire()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
