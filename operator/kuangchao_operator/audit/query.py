"""Reading the audit store: filters in, pages out. Opens files read-only; every value is a bound parameter.

A day is in an SQLite file, then in Parquet, then gone; it only ever moves in this direction, so a reader that looks
in this order sees each day once, also while it is being moved.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain, groupby
from pathlib import Path
from typing import Final

from kuangchao_contracts.audit import AuditPage, AuditQuery, StoredRecord
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_operator.audit import cold, schema
from kuangchao_operator.audit.cold import Cold

MAX_PAGE_BYTES: Final = 6 * 1024 * 1024
"""A page ends early rather than exceed what the gate's clients accept."""
MAX_RANGE: Final = timedelta(days=31)
"""What one query may span; whoever wants more asks piece by piece."""
COLD_DAYS: Final = 8
SLACK: Final = timedelta(days=1)
"""Records are filed by the day of writing, which may be later than their own time by a queue's length."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Text of ours for WHERE, and the values for its question marks."""

    text: str
    values: tuple[str | int, ...]


def query(directory: Path, wanted: AuditQuery, namespace: str | None = None) -> AuditPage:
    """Records that match every filter, oldest first; with `namespace` only those about resources in it.

    Without a time the last 31 days of the record are meant. Raises InvalidInputError for a longer range.
    """
    known = days(directory)
    try:
        span, where = chosen(known, wanted), _where(wanted, namespace)
    except OverflowError:
        raise InvalidInputError(
            "since", f"{wanted.since}, until={wanted.until}", "is beyond what a date can be"
        ) from None
    found: list[StoredRecord] = []
    size = 0
    with Cold(directory) as reader:
        for part in _parts(directory, span):
            for body in _rows(directory, part, where, wanted.limit + 1 - len(found), reader):
                size += len(body)
                if len(found) == wanted.limit or size > MAX_PAGE_BYTES:
                    return AuditPage(records=tuple(found), next_after=found[-1].seq)
                found.append(StoredRecord.model_validate_json(body))
    return AuditPage(records=tuple(found))


def days(directory: Path) -> list[date]:
    """Days of which there are records, oldest first."""
    return sorted({*map(schema.day_of, schema.files(directory)), *cold.days(directory)})


def chosen(known: list[date], wanted: AuditQuery) -> list[date]:
    """Of the known days those that may hold what is wanted. Raises InvalidInputError for a range that is no good."""
    if not known:
        return []
    since, until = _utc(wanted.since), _utc(wanted.until)
    end = until or max(_midnight(known[-1]), since or _midnight(known[-1]))
    start = since or end - MAX_RANGE
    if until and start >= until:
        raise InvalidInputError("since", start.isoformat(), f"is not before until={until.isoformat()}")
    if end - start > MAX_RANGE:
        raise InvalidInputError(
            "since",
            start.isoformat(),
            f"one query spans at most {MAX_RANGE.days} days, this one {(end - start).days} to {end.date()}",
            (end - MAX_RANGE).isoformat(),
        )
    first, last = (start - SLACK).date(), (end + SLACK).date()
    return [day for day in known if first <= day <= last]


def _parts(directory: Path, span: list[date]) -> Iterator[list[date]]:
    """Days to read at once: a hot one alone, cold ones by the week, for what DuckDB takes to begin with."""
    hot = {schema.day_of(path) for path in schema.files(directory)}
    for is_hot, some in groupby(span, key=hot.__contains__):
        together = list(some)
        width = 1 if is_hot else COLD_DAYS
        yield from (together[at : at + width] for at in range(0, len(together), width))


def _rows(directory: Path, days: list[date], where: Condition, limit: int, reader: Cold) -> list[bytes]:
    """Bodies of days. A day that is gone by now has none."""
    if len(days) > 1:
        with suppress(StorageError):  # day by day it shows which one, and whether it matters
            return _cold_rows(directory, days, where, limit, reader)
        alone = (_rows(directory, [day], where, limit, reader) for day in days)
        return list(chain.from_iterable(alone))[:limit]
    hot, shard = schema.file_of(directory, days[0]), cold.shard_of(directory, days[0])
    try:
        return _hot_rows(hot, where, limit)
    except sqlite3.Error as error:
        if hot.exists():
            raise StorageError(f"{hot.name} cannot be read: {type(error).__name__}") from error
    try:
        return _cold_rows(directory, days, where, limit, reader)
    except StorageError:
        if shard.exists():
            raise
    return []


def _cold_rows(directory: Path, days: list[date], where: Condition, limit: int, reader: Cold) -> list[bytes]:
    return reader.select([cold.shard_of(directory, day) for day in days], where.text, where.values, limit)


def _hot_rows(path: Path, where: Condition, limit: int) -> list[bytes]:
    reader = schema.open_reader(path)
    try:
        statement = f"SELECT body FROM records WHERE {where.text} ORDER BY seq LIMIT ?"  # noqa: S608  # our own text only
        return [bytes(body) for (body,) in reader.execute(statement, (*where.values, limit))]
    finally:
        reader.close()


def _where(wanted: AuditQuery, namespace: str | None) -> Condition:
    conditions = [Condition("seq > ?", (wanted.after,))]
    if since := _utc(wanted.since):
        conditions.append(Condition("ts >= ?", (schema.micros(since),)))
    if until := _utc(wanted.until):
        conditions.append(Condition("ts < ?", (schema.micros(until),)))
    equal = {"subject": wanted.subject, "op": wanted.operation, "job": wanted.job, "decision": wanted.result}
    conditions += [Condition(f"{column} = ?", (str(value),)) for column, value in equal.items() if value is not None]
    conditions += [_below(value) for value in (wanted.resource, namespace) if value]
    text = " AND ".join(condition.text for condition in conditions)
    return Condition(text, tuple(value for condition in conditions for value in condition.values))


def _below(resource: str) -> Condition:
    """Whole segments from the left: the resource itself, or whatever begins with it and a slash."""
    stem = resource.rstrip("/")
    # "0" is the character after "/": the range holds exactly what starts with the stem and a slash
    return Condition("(resource = ? OR (resource >= ? AND resource < ?))", (stem, stem + "/", stem + "0"))


def _utc(moment: datetime | None) -> datetime | None:
    """The same moment; one without a zone is UTC."""
    if moment is None:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
