"""`audit query` over more time than one query may span."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts.audit import AuditQuery
from kuangchao_operator.audit.query import query
from kuangchao_operator.cli.audit_commands import _Reader, pieces
from tests.unit.authority.kit import NOW
from tests.unit.authority.records import record
from tests.unit.authority.shards import fill

FIRST = datetime.fromtimestamp(NOW, UTC)
NUMBERS = range(0, 100, 5)
END = FIRST + timedelta(days=100)


class Governance:
    """Answers from a store, as governance does."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.asked = directory, 0

    def get(self, _: str, filters: dict[str, str]) -> Any:
        self.asked += 1
        return query(self.directory, AuditQuery.model_validate(filters)).replace(dropped_reads=3).wire()


@pytest.fixture(scope="module")
def governance(tmp_path_factory: pytest.TempPathFactory) -> Governance:
    """A record every fifth day for a hundred days, written late: its time is two hours before that of its file."""
    path = tmp_path_factory.mktemp("audit")
    fill(path, [[record(n, ts=FIRST + timedelta(days=n, hours=-2))] if n in NUMBERS else [] for n in range(100)])
    return Governance(path)


def read(governance: Governance, wanted: AuditQuery, limit: int = 10_000) -> tuple[list[str], _Reader]:
    reader = _Reader(governance, pieces(wanted, END), limit)  # type: ignore[arg-type]
    return [item.record.opid for item in reader.records() if item.record.op != "audit.shard"], reader


@pytest.mark.parametrize("until", [None, END])
def test_a_long_range_is_asked_for_in_pieces(governance: Governance, until: datetime | None) -> None:
    wanted = AuditQuery(since=FIRST - timedelta(days=1), until=until)
    assert len(pieces(wanted, END)) == 4
    found, reader = read(governance, wanted)
    assert found == [f"op-{n}" for n in NUMBERS]
    assert (reader.dropped, reader.truncated) == (3, False)


@pytest.mark.parametrize("days", [1, 31])
def test_a_short_range_is_one_query(days: int) -> None:
    wanted = AuditQuery(since=END - timedelta(days=days), until=END)
    assert pieces(wanted, END) == [wanted]
    assert pieces(AuditQuery(job="digits"), END) == [AuditQuery(job="digits")]


def test_a_limit_ends_it_and_is_said(governance: Governance) -> None:
    found, reader = read(governance, AuditQuery(since=FIRST - timedelta(days=1), operation="execution.launch"), 9)
    assert (len(found), reader.truncated) == (9, True)
