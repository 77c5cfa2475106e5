"""Closing what a dead process left open: facts first, then one result each, and a failing store stops no start."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.errors import AuditUnavailableError, UnavailableError
from kuangchao_operator.app.recovery import settle
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.shell.recovery import JobTruth
from tests.unit.authority.kit import Clock
from tests.unit.authority.records import record

OPEN = tuple(record(n, stage=Stage.INTENT, op="execution.stop", decision=Decision.ERROR, job_uid="u") for n in (1, 2))


class Parts:
    """A sink and facts; each may fail."""

    def __init__(self, broken_disk: bool = False, outages: int = 0) -> None:
        self.asked: list[AuditRecord] = []
        self._broken, self._outages = broken_disk, outages

    async def durable(self, result: AuditRecord) -> None:
        self.asked.append(result)
        if self._broken:
            raise AuditUnavailableError("disk full")

    async def of(self, resource: str, job_uid: str) -> JobTruth | None:
        if self._outages:
            self._outages -= 1
            raise UnavailableError("away")
        return None

    async def settle(self) -> None:
        sink: Any = SimpleNamespace(interrupted=OPEN, durable=self.durable)
        await settle(cast(StoreSink, sink), self, Clock().moment)


async def test_each_open_intent_gets_one_result() -> None:
    parts = Parts()
    await parts.settle()
    assert [(r.opid, r.stage, r.decision, r.reason) for r in parts.asked] == [
        (intent.opid, Stage.RESULT, Decision.ALLOW, "Recovered") for intent in OPEN
    ]


async def test_without_facts_nothing_is_written_and_it_can_be_tried_again() -> None:
    parts = Parts(outages=1)
    with pytest.raises(UnavailableError):
        await parts.settle()
    assert parts.asked == []
    await parts.settle()
    assert len(parts.asked) == 2


async def test_a_store_that_fails_stops_no_start() -> None:
    parts = Parts(broken_disk=True)
    await parts.settle()
    assert len(parts.asked) == 2
