"""The watcher: every record is counted once, anomalies are counted and told without anything secret."""

import logging
from datetime import datetime

import pytest
from prometheus_client import CollectorRegistry

from kuangchao_contracts.audit import AuditPage, AuditQuery, AuditRecord, StoredRecord
from kuangchao_operator.layers.governance.anomalies import Rule
from kuangchao_operator.layers.governance.watcher import Watcher
from tests.unit.governance.trail import AGENTS, at, denied, quiet

PAGE = 100


class Trail:
    """Pages of records that are written by now."""

    def __init__(self, records: list[AuditRecord]) -> None:
        self.now = at(0)
        self._stored = [
            StoredRecord(seq=number, previous="", record=record)
            for number, record in enumerate(sorted(records, key=lambda record: record.ts), start=1)
        ]
        self.registry = CollectorRegistry()
        self.watcher = Watcher(self.query, self.registry, self.clock)

    def clock(self) -> datetime:
        return self.now

    async def query(self, wanted: AuditQuery) -> AuditPage:
        there = [item for item in self._stored if item.seq > wanted.after and item.record.ts <= self.now]
        return AuditPage(records=tuple(there[:PAGE]), next_after=there[PAGE - 1].seq if len(there) > PAGE else None)

    async def watch(self, windows: int) -> None:
        for window in range(windows):
            for second in range(0, 300, 60):
                self.now = at(window, second)
                await self.watcher.poll()

    def anomalies(self) -> dict[str, float]:
        return {
            rule: self.registry.get_sample_value("kuangchao_audit_anomalies_total", {"rule": rule}) or 0
            for rule in Rule
        }


async def test_a_quiet_trail_shows_every_rule_at_zero() -> None:
    trail = Trail(quiet(10))
    await trail.watch(12)
    assert set(trail.anomalies().values()) == {0}
    assert trail.registry.get_sample_value("kuangchao_audit_anomalies_total", {"rule": "replay"}) == 0


async def test_an_anomaly_is_counted_once_and_told(caplog: pytest.LogCaptureFixture) -> None:
    replayed = denied(at(8, 30), AGENTS[0], "state.commit_checkpoint", "ReplayedToken")
    trail = Trail([*quiet(10), replayed])
    with caplog.at_level(logging.WARNING):
        await trail.watch(12)
    assert trail.anomalies() == {rule: float(rule is Rule.REPLAY) for rule in Rule}
    (message,) = caplog.messages
    for words in ("replay", AGENTS[0], replayed.opid, "usual none"):
        assert words in message
