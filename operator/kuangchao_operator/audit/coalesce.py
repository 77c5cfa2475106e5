"""Counts what comes in floods: equal denials beyond a limit, step calls, dropped reads. Nothing goes uncounted."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Final

from kuangchao_contracts.audit import AuditRecord, Decision, Stage, new_opid
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.resources import CLUSTER

WINDOW_SECONDS: Final = 10.0
VERBATIM: Final = 100
"""Equal denials per window that are kept one by one."""
VERBATIM_OF_ONE: Final = 300
"""Denials of one subject per window that are kept one by one, whatever they are: by changing operation and fault it
would else have thousands, and fill the volume."""
MAX_KEYS: Final = 10_000
MAX_DROP_KEYS: Final = 1_000
UNKNOWN: Final = "unknown"
"""Layer of a record whose operation does not exist."""
Key = tuple[str, str, str]


class DenialCounter:
    """Lets the first equal denials of a window through and counts the rest."""

    def __init__(self, clock: Callable[[], float], verbatim_of_one: int = VERBATIM_OF_ONE) -> None:
        self._clock, self._verbatim_of_one = clock, verbatim_of_one
        self._start = clock()
        self._seen: dict[Key, int] = {}
        self._last: dict[Key, AuditRecord] = {}
        self._counted: dict[Key, int] = {}
        self._of_one: Counter[str] = Counter()

    def admit(self, record: AuditRecord) -> bool:
        """Whether to store this denial as it is; otherwise it is counted until `flush`."""
        # operations that nobody knows are one: a caller makes up as many names as it likes
        key = (record.subject, record.op if record.layer != UNKNOWN else UNKNOWN, record.reason)
        if key not in self._seen and len(self._seen) >= MAX_KEYS:
            key = ("many", "many", record.reason)
        seen = self._seen.get(key, 0) + 1
        self._seen[key] = seen
        if seen <= VERBATIM and self._of_one[key[0]] < self._verbatim_of_one:
            self._of_one[key[0]] += 1
            return True
        self._last[key] = record
        self._counted[key] = self._counted.get(key, 0) + record.count
        return False

    def due(self) -> bool:
        """Whether the window is over."""
        return not 0 <= self._clock() - self._start < WINDOW_SECONDS

    def flush(self) -> list[AuditRecord]:
        """One record per kind of denial that was only counted, with the exact count; starts a new window."""
        records = [
            last.replace(count=self._counted[key], subject=key[0], op=key[1], detail="counted, newest shown")
            for key, last in self._last.items()
        ]
        self._start, self._seen, self._last, self._counted = self._clock(), {}, {}, {}
        self._of_one.clear()
        return records


class StepCounter:
    """Adds up step calls by operation, resource and subject."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}

    def add(self, op: str, resource: str, subject: str) -> None:
        """Count one call."""
        key = (op, resource, subject)
        self._counts[key] = self._counts.get(key, 0) + 1

    def flush(self, now: datetime, process: str) -> list[AuditRecord]:
        """One read record per key with the exact count."""
        counts, self._counts = self._counts, {}
        return [
            AuditRecord(
                ts=now,
                opid=new_opid(),
                stage=Stage.READ,
                layer=op.split(".")[0],
                op=op,
                resource=resource,
                subject=subject,
                job=resource.split("/")[2],
                decision=Decision.ALLOW,
                count=count,
                process=process,
            )
            for (op, resource, subject), count in counts.items()
        ]


class DropCounter:
    """Counts successful reads that had no room, by operation and namespace."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self.total = 0

    def add(self, record: AuditRecord) -> None:
        """One more; a record that stands for several counts as so many."""
        key = (record.op, record.resource.split("/", 1)[0])
        if key not in self._counts and len(self._counts) >= MAX_DROP_KEYS:
            key = ("many", CLUSTER)
        self._counts[key] = self._counts.get(key, 0) + record.count
        self.total += record.count

    def flush(self, now: datetime, process: str) -> list[AuditRecord]:
        """One record per key with the exact count."""
        counts, self._counts = self._counts, {}
        return [
            AuditRecord(
                ts=now,
                opid=new_opid(),
                stage=Stage.SYSTEM,
                layer=Layer.GOVERNANCE.value,
                op="audit.dropped",
                resource=f"{namespace}/audit/records",
                subject=Layer.GOVERNANCE.subject,
                decision=Decision.ERROR,
                reason="Overload",
                detail=f"calls of {op} that are not in the record",
                count=count,
                process=process,
            )
            for (op, namespace), count in counts.items()
        ]
