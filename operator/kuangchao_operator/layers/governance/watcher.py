"""Counts what the audit trail shows, for Prometheus. Looks on; nothing depends on it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from kuangchao_contracts.audit import AuditPage, AuditQuery, AuditRecord
from kuangchao_contracts.errors import KuangchaoError

log = logging.getLogger(__name__)
POLL_SECONDS: Final = 15.0
PAGES_PER_POLL: Final = 20
LOOK_BACK: Final = timedelta(minutes=5)


class Watcher:
    """Follows the trail by its cursor."""

    def __init__(
        self,
        query: Callable[[AuditQuery], Awaitable[AuditPage]],
        registry: CollectorRegistry,
        clock: Callable[[], datetime],
    ) -> None:
        self._query, self._clock, self._after = query, clock, 0
        labels = ("layer", "operation", "stage", "decision")
        self._records = Counter("kuangchao_audit_records", "Audit records seen, by count.", labels, registry=registry)
        self._refused = Counter("kuangchao_audit_denials", "Denials seen, by reason.", ("reason",), registry=registry)
        self._sequence = Gauge("kuangchao_audit_sequence", "Newest sequence number seen.", registry=registry)
        self._dropped = Gauge("kuangchao_audit_dropped_reads", "Successful reads not recorded.", registry=registry)
        self._reachable = Gauge("kuangchao_audit_reachable", "1 when the last poll succeeded.", registry=registry)

    async def poll(self) -> None:
        """Take in what is new. Raises what the query raises."""
        since = self._clock() - LOOK_BACK if self._after == 0 else None
        for _ in range(PAGES_PER_POLL):
            page = await self._query(AuditQuery(after=self._after, since=since))
            for item in page.records:
                self._count(item.record)
                self._after = item.seq
            self._dropped.set(page.dropped_reads)
            self._sequence.set(self._after)
            if page.next_after is None:
                return

    async def keep(self) -> None:
        """Poll for ever."""
        while True:
            try:
                await self.poll()
                self._reachable.set(1)
            except KuangchaoError as error:
                self._reachable.set(0)
                log.warning("cannot read the audit trail: %s", error)
            await asyncio.sleep(POLL_SECONDS)

    def _count(self, record: AuditRecord) -> None:
        self._records.labels(record.layer, record.op, record.stage.value, record.decision.value).inc(record.count)
        if record.decision == "deny":
            self._refused.labels(record.reason).inc(record.count)
