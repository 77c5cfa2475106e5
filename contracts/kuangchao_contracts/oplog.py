"""The operation log of a rank process: every step call, hash-chained, in microseconds and without a durable write.

Head and exact count enter the audit store with each checkpoint, which pins what is in the file. Each line is JSON; the
hash of a line covers the line before it, so that no line can be changed, removed or put in unseen (`oplogcheck`).
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import AuditUnavailableError
from kuangchao_contracts.oplogfile import LogFile, Pinned

GENESIS: Final = "0" * 64
MAX_PENDING: Final = 1_024
"""Lines kept in memory until the log gets its file."""
MAX_NOTES: Final = 256
"""Notes of different kinds kept for the next report; each kind is one record with an exact count."""
LEASE_OVERDUE: Final = "LeaseOverdue"
_Key = tuple[str, str, str]
_MANY: Final[_Key] = ("many", "many", "many")


def request_hash(request: Contract) -> str:
    """How a request is named in a line: what was asked can be compared, and is not told."""
    return hashlib.sha256(request.__pydantic_serializer__.to_json(request)).hexdigest()


@dataclass(slots=True)
class _Note:
    record: AuditRecord
    count: int = 0


class OperationLog(AuditSink):
    """Append-only; without a file it keeps head and count only.

    Calls come from one thread. Refusals come from any: code of a user has threads of its own.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._count, self._head = 0, GENESIS
        self._file: LogFile | None = None
        self._pending: list[bytes] = []
        self._names: dict[_Key, str] = {}
        self._notes: dict[_Key, _Note] = {}
        self._mark, self._did = "", ""
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Calls logged so far."""
        return self._count

    @property
    def head(self) -> str:
        """Hash of the newest line; pins everything before it."""
        return self._head

    def keep_in(self, file: LogFile | None) -> None:
        """Write lines to a file from now on, those before it too; None: keep head and count only."""
        with self._lock:
            lines, self._pending = self._pending, []
            if file is not None and len(lines) == self._count:
                for line in lines:
                    file.append(line)
                self._file = file

    def pin(self) -> Pinned:
        """What the log holds now, handed to the file system; `Pinned.sync` makes it durable."""
        with self._lock:
            return Pinned(self._count, self._head, self._file.pin() if self._file is not None else ())

    def grace(self, on: bool) -> None:
        """Mark the lines that follow: the calls are allowed though their lease has expired."""
        self._mark = ',"grace":true' if on else ""

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:
        """Append one call: what, on what, by whom, and the hash of the request."""
        what = f'"req":"{request_hash(request)}"'
        with self._lock:
            self._append(self._name(op, resource, subject), what)
            if self._mark:
                self._note_grace(op, resource, subject)

    def step_done(self, response: Contract) -> None:
        """Say in the next line what the call did: its own was written before it was made."""
        text = response.audit_text()
        self._did = f',"did":{json.dumps(text)}' if text else ""

    def step_denied(self, record: AuditRecord) -> None:
        """Append a denial and keep it for `take_notes`."""
        with self._lock:
            self._note((record.subject, record.op, record.reason), lambda: record)
            self._append(self._name(record.op, record.resource, record.subject), f'"deny":{json.dumps(record.reason)}')

    def take_notes(self) -> tuple[AuditRecord, ...]:
        """What the store must hear of since the last time: denials, and calls in grace, with exact counts."""
        with self._lock:
            notes, self._notes = self._notes, {}
        return tuple(note.record.replace(count=note.count) for note in notes.values())

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:  # noqa: ARG002  # sink's signature
        """A rank has no durable store, so control calls cannot be made through its gate."""
        raise AuditUnavailableError(f"{record.op} needs a durable store; a rank process has none")

    def best_effort(self, record: AuditRecord) -> None:
        """A rank serves no reads from outside."""
        raise AuditUnavailableError(f"{record.op} needs an audit store; a rank process has none")

    def close(self) -> None:
        """Flush and close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- under the lock

    def _append(self, name: str, what: str) -> None:
        self._count += 1
        said = f"{name},{what}{self._did}{self._mark}"
        line = f'{{"n":{self._count},"t":{self._clock_ns()},{said},"prev":"{self._head}"}}'.encode()
        self._head, self._did = hashlib.sha256(line).hexdigest(), ""
        if self._file is not None:
            self._file.append(line)
        elif len(self._pending) < MAX_PENDING:
            self._pending.append(line)

    def _name(self, op: str, resource: str, subject: str) -> str:
        """JSON of what repeats from step to step; kept, for escaping costs more than the rest."""
        key = (op, resource, subject)
        text = self._names.get(key)
        if text is None:
            text = f'"op":{json.dumps(op)},"res":{json.dumps(resource)},"sub":{json.dumps(subject)}'
            if len(self._names) < MAX_NOTES:
                self._names[key] = text
        return text

    def _note(self, key: _Key, make: Callable[[], AuditRecord]) -> None:
        note = self._notes.get(key)
        if note is None and len(self._notes) >= MAX_NOTES:
            note, key = self._notes.get(_MANY), _MANY
        if note is None:
            note = self._notes[key] = _Note(make())
        note.count += 1

    def _note_grace(self, op: str, resource: str, subject: str) -> None:
        self._note(
            (subject, op, LEASE_OVERDUE),
            lambda: AuditRecord(
                ts=datetime.fromtimestamp(self._clock_ns() / 1e9, UTC),
                opid="",
                stage=Stage.SYSTEM,
                layer=op.partition(".")[0],
                op=op,
                resource=resource,
                subject=subject,
                decision=Decision.ALLOW,
                reason=LEASE_OVERDUE,
            ),
        )
