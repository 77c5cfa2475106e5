"""Counts what the audit trail shows, for Prometheus, and tells unusual use of rights. Nothing depends on it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from kuangchao_contracts.audit import AuditPage, AuditQuery, AuditRecord
from kuangchao_contracts.errors import KuangchaoError
from kuangchao_operator.layers.governance.anomalies import Finding, Rule
from kuangchao_operator.layers.governance.follower import Follower

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
        self._follower = Follower()
        labels = ("layer", "operation", "stage", "decision")
        self._records = Counter("kuangchao_audit_records", "Audit records seen, by count.", labels, registry=registry)
        self._refused = Counter("kuangchao_audit_denials", "Denials seen, by reason.", ("reason",), registry=registry)
        self._sequence = Gauge("kuangchao_audit_sequence", "Newest sequence number seen.", registry=registry)
        self._dropped = Gauge("kuangchao_audit_dropped_reads", "Successful reads not recorded.", registry=registry)
        self._unusual = Counter(
            "kuangchao_audit_anomalies",
            "Unusual use of rights in a window of the trail, by rule.",
            ("rule",),
            registry=registry,
        )
        for rule in Rule:
            self._unusual.labels(rule.value)  # a counter that is there from the start shows its first increase
        self._reachable = Gauge("kuangchao_audit_reachable", "1 when the last poll succeeded.", registry=registry)

    async def poll(self) -> None:
        """Take in what is new. Raises what the query raises."""
        since = self._clock() - LOOK_BACK if self._after == 0 else None
        for _ in range(PAGES_PER_POLL):
            page = await self._query(AuditQuery(after=self._after, since=since))
            for item in page.records:
                self._count(item.record)
                self._follower.take(item.record)
                self._after = item.seq
            self._dropped.set(page.dropped_reads)
            self._sequence.set(self._after)
            if page.next_after is None:
                break
        for finding in self._follower.findings(self._clock()):
            self._tell(finding)

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

    def _tell(self, finding: Finding) -> None:
        self._unusual.labels(finding.rule.value).inc()
        log.warning(
            "unusual use of rights: %s by %s, %d from %s, usual %s (%s); operations %s; %s",
            finding.rule.value,
            finding.subject,
            finding.count,
            finding.start.isoformat(),
            "none" if finding.norm is None else f"{finding.norm:g}",
            finding.detail,
            ", ".join(finding.opids),
            finding.advice,
        )

    def _count(self, record: AuditRecord) -> None:
        self._records.labels(record.layer, record.op, record.stage.value, record.decision.value).inc(record.count)
        if record.decision == "deny":
            self._refused.labels(record.reason).inc(record.count)
