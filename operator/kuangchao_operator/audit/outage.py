"""The state in which nothing can be recorded: since when, why, how much was refused; and the records of it."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from kuangchao_contracts.audit import AuditRecord, Decision, Stage, new_opid
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.resources import CLUSTER
from kuangchao_operator.audit.disk import Room, Space

EFFECTS: Final = {
    Room.ALL: "everything is recorded again",
    Room.NO_READS: "successful reads are not recorded",
    Room.NO_WRITES: "control calls are refused",
}
REASONS: Final = {Room.ALL: "", Room.NO_READS: "DiskLow", Room.NO_WRITES: "DiskFull"}


class Outage:
    """Three causes, each with its own begin and end: writes that fail, one that hangs, a volume that is full."""

    def __init__(self) -> None:
        self._failed: float | None = None
        self._full: float | None = None
        self._under_way: deque[float] = deque()
        self._why, self._refused_before = "", 0
        self.refused = 0
        """Records refused so far, in all outages."""

    @property
    def since(self) -> float | None:
        """When the earliest cause that still holds began."""
        causes = (self._failed, self._full, *self._under_way)
        return min((at for at in causes if at is not None), default=None)

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failed is not None

    def fail(self, now: float, why: str) -> bool:
        """A write failed; whether it is the first after one that did not."""
        first = self._failed is None
        if first:
            self._failed, self._why, self._refused_before = now, why, self.refused
        return first

    def succeed(self) -> None:
        """A write succeeded."""
        self._failed = None

    @contextmanager
    def writing(self, now: float) -> Iterator[None]:
        """A write is under way; should it hang, that is an outage too. They end in the order in which they began."""
        self._under_way.append(now)
        try:
            yield
        finally:
            self._under_way.popleft()

    def fill(self, now: float, full: bool) -> None:
        """Whether the volume is full."""
        self._full = (now if self._full is None else self._full) if full else None

    def record(self, moment: datetime, process: str) -> AuditRecord:
        """What the first write that succeeds again says of those that failed."""
        refused = self.refused - self._refused_before
        return _record(moment, process, "audit.outage", "AuditUnavailable", f"{self._why}; {refused} records refused")


def room_record(moment: datetime, process: str, room: Room, space: Space) -> AuditRecord:
    """What is recorded when the room on the volume changes what is done."""
    detail = f"{space.percent:.1f} % of {space.total} bytes free: {EFFECTS[room]}"
    return _record(moment, process, "audit.disk", REASONS[room], detail)


def _record(moment: datetime, process: str, op: str, reason: str, detail: str) -> AuditRecord:
    return AuditRecord(
        ts=moment,
        opid=new_opid(),
        stage=Stage.SYSTEM,
        layer=Layer.GOVERNANCE.value,
        op=op,
        resource=f"{CLUSTER}/audit/records",
        subject=Layer.GOVERNANCE.subject,
        decision=Decision.ERROR if reason else Decision.ALLOW,
        reason=reason,
        detail=detail,
        process=process,
    )
