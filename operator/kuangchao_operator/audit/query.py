"""Reading the audit store: filters in, pages out. Opens files read-only; every value is a bound parameter."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from kuangchao_contracts.audit import AuditPage, AuditQuery, StoredRecord
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_operator.audit import schema

MAX_PAGE_BYTES: Final = 6 * 1024 * 1024
"""A page ends early rather than exceed what the gate's clients accept."""
SLACK: Final = timedelta(days=1)
"""Records are filed by the day of writing, which may be later than their own time by a queue's length."""
Condition = tuple[str, tuple[str | int, ...]]


def query(directory: Path, wanted: AuditQuery, namespace: str | None = None) -> AuditPage:
    """Records that match every filter, oldest first; with `namespace` only those about resources in it."""
    if wanted.since and wanted.until and wanted.since >= wanted.until:
        raise InvalidInputError("since", wanted.since.isoformat(), f"is not before until={wanted.until.isoformat()}")
    where, values = _where(wanted, namespace)
    found: list[StoredRecord] = []
    size = 0
    for path in _files(directory, wanted):
        for body in _rows(path, where, values, wanted.limit + 1 - len(found)):
            size += len(body)
            if len(found) == wanted.limit or size > MAX_PAGE_BYTES:
                return AuditPage(records=tuple(found), next_after=found[-1].seq)
            found.append(StoredRecord.model_validate_json(body))
    return AuditPage(records=tuple(found))


def _files(directory: Path, wanted: AuditQuery) -> list[Path]:
    first = (_aware(wanted.since) - SLACK).astimezone(UTC).date() if wanted.since else None
    last = (_aware(wanted.until) + SLACK).astimezone(UTC).date() if wanted.until else None
    return [
        path
        for path in schema.files(directory)
        if (first is None or schema.day_of(path) >= first) and (last is None or schema.day_of(path) <= last)
    ]


def _rows(path: Path, where: str, values: tuple[str | int, ...], limit: int) -> list[bytes]:
    try:
        reader = schema.open_reader(path)
        try:
            statement = f"SELECT body FROM records WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608  # our own text only
            return [bytes(body) for (body,) in reader.execute(statement, (*values, limit))]
        finally:
            reader.close()
    except sqlite3.Error as error:
        raise StorageError(f"{path.name} cannot be read: {type(error).__name__}") from error


def _where(wanted: AuditQuery, namespace: str | None) -> Condition:
    conditions: list[Condition] = [("seq > ?", (wanted.after,))]
    if wanted.since:
        conditions.append(("ts >= ?", (schema.micros(_aware(wanted.since)),)))
    if wanted.until:
        conditions.append(("ts < ?", (schema.micros(_aware(wanted.until)),)))
    equal = {"subject": wanted.subject, "op": wanted.operation, "job": wanted.job, "decision": wanted.result}
    conditions += [(f"{column} = ?", (str(value),)) for column, value in equal.items() if value is not None]
    conditions += [_below(value) for value in (wanted.resource, namespace) if value]
    text = " AND ".join(part for part, _ in conditions)
    return text, tuple(value for _, values in conditions for value in values)


def _below(resource: str) -> Condition:
    """Whole segments from the left: the resource itself, or whatever begins with it and a slash."""
    stem = resource.rstrip("/")
    # "0" is the character after "/": the range holds exactly what starts with the stem and a slash
    return "(resource = ? OR (resource >= ? AND resource < ?))", (stem, stem + "/", stem + "0")


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
