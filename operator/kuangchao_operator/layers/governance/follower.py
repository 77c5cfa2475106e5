"""Follows a trail: holds the records of open windows, and judges each window once, when its late records are in.

A trail may have no end, so everything that is held is bounded. Reads no clock and no store.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from kuangchao_contracts.audit import AuditRecord
from kuangchao_operator.layers.governance.anomalies import Finding, judge
from kuangchao_operator.layers.governance.windows import LENGTH, Memory, start_of, window

LATE: Final = timedelta(seconds=90)
"""Step calls are counted for a minute before they become a record; the store and our own polling come on top."""
MAX_RECORDS: Final = 100_000
"""Of all open windows together; more are counted in `unseen`, not looked at."""


class Follower:
    """Records in, findings out, window by window."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._open: dict[datetime, list[AuditRecord]] = {}
        self._memory, self._judged = Memory(), datetime.min.replace(tzinfo=UTC)
        self._held, self._max_records = 0, max_records
        self.unseen = 0

    def take(self, record: AuditRecord) -> None:
        """One more record. One of a window that was judged already is not looked at."""
        start = start_of(record.ts)
        if self._held >= self._max_records or start <= self._judged:
            self.unseen += 1
            return
        self._open.setdefault(start, []).append(record)
        self._held += 1

    def findings(self, now: datetime) -> list[Finding]:
        """Findings of all windows that are over by now."""
        found: list[Finding] = []
        for start in sorted(start for start in self._open if start + LENGTH + LATE <= now):
            records = self._open.pop(start)
            self._held -= len(records)
            self._judged = start
            closed = window(start, records)
            found += judge(closed, self._memory)
            self._memory = self._memory.after(closed)
        return found


def find(records: Iterable[AuditRecord]) -> list[Finding]:
    """All findings of a trail in the order in which it was written, oldest window first."""
    follower, newest, found = Follower(), datetime.min.replace(tzinfo=UTC), []
    for record in records:
        follower.take(record)
        if start_of(record.ts) > start_of(newest):
            found += follower.findings(record.ts)
        newest = max(newest, record.ts)
    return found + follower.findings(newest + LENGTH + LATE)
