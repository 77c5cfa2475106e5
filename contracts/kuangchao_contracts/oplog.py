"""The operation log of a rank process: every step call, hash-chained, in microseconds and without a durable write.

Head and exact count travel with heartbeats and commits into the audit store, which pins what is in the file. Each line
is JSON; the hash of a line covers the line before it, so that no line can be changed, removed or put in unseen.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kuangchao_contracts.audit import AuditRecord, AuditSink
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import AuditUnavailableError, StorageError

GENESIS: Final = "0" * 64
BUFFER_BYTES: Final = 64 * 1024
MAX_DENIALS: Final = 256
"""Denials of different kinds kept for the next report; each kind is one record with an exact count."""


class OperationLog(AuditSink):
    """Append-only. Used from one thread at a time; `path` None keeps head and count only."""

    def __init__(self, path: Path | None = None, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._count, self._head = resume(path) if path else (0, GENESIS)
        self._file = path.open("ab", buffering=BUFFER_BYTES) if path else None
        self._names: dict[tuple[str, str, str], str] = {}
        self._denials: dict[tuple[str, str, str], AuditRecord] = {}

    @property
    def count(self) -> int:
        """Calls logged so far."""
        return self._count

    @property
    def head(self) -> str:
        """Hash of the newest line; pins everything before it."""
        return self._head

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:
        """Append one call: what, on what, by whom, and the hash of the request."""
        request_hash = hashlib.sha256(request.__pydantic_serializer__.to_json(request)).hexdigest()
        self._append(self._name(op, resource, subject), f'"req":"{request_hash}"')

    def step_denied(self, record: AuditRecord) -> None:
        """Append a denial and keep it for `take_denials`."""
        key = (record.subject, record.op, record.reason)
        if key not in self._denials and len(self._denials) >= MAX_DENIALS:
            key = ("many", "many", "many")
        kept = self._denials.get(key)
        self._denials[key] = record if kept is None else kept.replace(count=kept.count + 1)
        self._append(self._name(record.op, record.resource, record.subject), f'"deny":{json.dumps(record.reason)}')

    def take_denials(self) -> tuple[AuditRecord, ...]:
        """Denials since the last time, for the store."""
        denials, self._denials = tuple(self._denials.values()), {}
        return denials

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:  # noqa: ARG002  # sink's signature
        """A rank has no durable store, so control calls cannot be made through its gate."""
        raise AuditUnavailableError(f"{record.op} needs a durable store; a rank process has none")

    def best_effort(self, record: AuditRecord) -> None:
        """A rank serves no reads from outside."""
        raise AuditUnavailableError(f"{record.op} needs an audit store; a rank process has none")

    def flush(self) -> None:
        """Hand buffered lines to the file."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, name: str, what: str) -> None:
        self._count += 1
        line = f'{{"n":{self._count},"t":{self._clock_ns()},{name},{what},"prev":"{self._head}"}}'.encode()
        self._head = hashlib.sha256(line).hexdigest()
        if self._file is not None:
            self._file.write(line + b"\n")

    def _name(self, op: str, resource: str, subject: str) -> str:
        """JSON of what repeats from step to step; kept, for escaping costs more than the rest."""
        key = (op, resource, subject)
        text = self._names.get(key)
        if text is None:
            text = f'"op":{json.dumps(op)},"res":{json.dumps(resource)},"sub":{json.dumps(subject)}'
            if len(self._names) < MAX_DENIALS:
                self._names[key] = text
        return text


def resume(path: Path) -> tuple[int, str]:
    """Count and head of a log that is to be continued, after checking it; (0, GENESIS) for an empty or missing one."""
    return verify_oplog(path) if path.exists() else (0, GENESIS)


def verify_oplog(path: Path) -> tuple[int, str]:
    """Count and head of a log. Raises StorageError naming the first line that does not follow from the one before."""
    count, head = 0, GENESIS
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removesuffix(b"\n")
            if line == raw:
                raise StorageError(f"{path.name} line {number}: cut off")
            count, head = _follow(path, number, line, head), hashlib.sha256(line).hexdigest()
    return count, head


def _follow(path: Path, number: int, line: bytes, head: str) -> int:
    try:
        entry = json.loads(line)
        count, previous = int(entry["n"]), str(entry["prev"])
    except (ValueError, TypeError, KeyError):
        raise StorageError(f"{path.name} line {number}: is not a log entry") from None
    if count != number:
        raise StorageError(f"{path.name} line {number}: says that it is entry {count}")
    if previous != head:
        raise StorageError(f"{path.name} line {number}: does not follow from the line before")
    return count
