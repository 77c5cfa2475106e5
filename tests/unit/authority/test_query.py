"""Audit queries: filters combine, pages continue, and nothing in a filter is anything but a value."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery, Decision
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.tokens import parse_claims
from kuangchao_operator.audit import schema
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.layers.governance.service import GovernanceService
from tests.unit.authority.kit import NOW, Clock, Signer
from tests.unit.authority.records import record

RECORDS = [
    record(1),
    record(2, subject="layer:state", op="state.assess", layer="state"),
    record(3, resource="team-a/jobs/digits2", job="digits2"),
    record(4, resource="team-a/jobs/digits/status"),
    record(5, resource="team-b/jobs/digits"),
    record(6, decision=Decision.DENY, reason="StaleEpoch"),
    record(7, resource="team-a/jobs/di_gits", job="di_gits"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit")
    clock = Clock()
    store = AuditStore(path, clock)
    for item in RECORDS:
        if item.opid == "op-4":
            clock.now += 86_400
        store.append([Entry(item)])
    store.close()
    assert len(schema.files(path)) == 2
    return path


def numbers(directory: Path, namespace: str | None = None, **filters: Any) -> list[int]:
    return [item.seq for item in query(directory, AuditQuery(**filters), namespace).records]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"subject": "layer:state"}, [2]),
        ({"subject": "layer"}, []),
        ({"operation": "state.assess"}, [2]),
        ({"resource": "team-a/jobs/digits"}, [1, 2, 4, 6]),
        ({"resource": "team-a/jobs"}, [1, 2, 3, 4, 6, 7]),
        ({"resource": "team"}, []),
        ({"resource": "team-a/jobs/di%"}, []),
        ({"resource": "team-a/jobs/di_gits"}, [7]),
        ({"result": "deny"}, [6]),
        ({"job": "digits2"}, [3]),
        ({"since": datetime.fromtimestamp(NOW + 6, UTC)}, [6, 7]),
        ({"until": datetime.fromtimestamp(NOW + 3, UTC)}, [1, 2]),
        ({"since": datetime.fromtimestamp(NOW + 2, UTC), "until": datetime.fromtimestamp(NOW + 4, UTC)}, [2, 3]),
        ({"resource": "team-a", "result": "allow", "subject": "layer:execution", "job": "digits"}, [1, 4]),
        ({"after": 5}, [6, 7]),
        ({"subject": "'; DROP TABLE records; --"}, []),
        ({"resource": "x' OR '1'='1"}, []),
    ],
)
def test_filters(directory: Path, filters: dict[str, Any], expected: list[int]) -> None:
    assert numbers(directory, **filters) == expected


def test_a_naive_time_is_utc(directory: Path) -> None:
    naive = datetime.fromtimestamp(NOW + 6, UTC).replace(tzinfo=None)
    assert numbers(directory, since=naive) == [6, 7]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_continue_over_files(directory: Path, limit: int) -> None:
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = query(directory, AuditQuery(limit=limit, after=after))
        assert len(page.records) <= limit
        seen += [item.seq for item in page.records]
        after = page.next_after
    assert seen == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("filters", [{"limit": 10**9}, {"limit": 0}, {"after": -1}, {"subject": "x" * 300}])
def test_filters_have_bounds(filters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AuditQuery(**filters)


def test_an_empty_range_is_an_error(directory: Path) -> None:
    moment = datetime.fromtimestamp(NOW, UTC)
    with pytest.raises(e.InvalidInputError):
        query(directory, AuditQuery(since=moment, until=moment - timedelta(seconds=1)))


def test_a_reader_cannot_write(directory: Path) -> None:
    reader = schema.open_reader(schema.files(directory)[0])
    with pytest.raises(Exception, match="readonly"):
        reader.execute("DELETE FROM records")
    reader.close()


@pytest.fixture
def capability() -> Iterator[Any]:
    def make(namespace: str) -> Capability:
        claims = parse_claims(Signer(Clock()).payload(ns=namespace))
        return Capability(claims=claims, kid="k", op="governance.query", resource=f"{namespace}/audit/x", opid="o")

    return iter([make("_cluster"), make("team-b")])


async def test_a_tenant_sees_only_its_namespace(directory: Path, capability: Iterator[Capability]) -> None:
    service = GovernanceService(directory, lambda: 9)
    page = await service.query(next(capability), AuditQuery())
    assert (len(page.records), page.dropped_reads) == (7, 9)
    tenant = next(capability)
    assert [item.seq for item in (await service.query(tenant, AuditQuery())).records] == [5]
    assert (await service.query(tenant, AuditQuery(resource="team-a/jobs/digits"))).records == ()
