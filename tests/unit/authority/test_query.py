"""Audit queries: filters combine, pages continue, and nothing in a filter is anything but a value."""

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery, Decision
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.tokens import parse_claims
from kuangchao_operator.audit import schema, tiering
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.tiering import move
from kuangchao_operator.layers.governance.service import GovernanceService
from tests.unit.authority.kit import NOW, Clock, Signer
from tests.unit.authority.records import record
from tests.unit.authority.shards import DAY, day, fill, numbers, pages

RECORDS = [
    record(1),
    record(2, subject="layer:state", op="state.assess", layer="state"),
    record(3, resource="team-a/jobs/digits2", job="digits2"),
    record(4, resource="team-a/jobs/digits/status"),
    record(5, resource="team-b/jobs/digits"),
    record(6, decision=Decision.DENY, reason="StaleEpoch"),
    record(7, resource="team-a/jobs/di_gits", job="di_gits"),
]


@pytest.fixture(scope="module", params=["hot", "cold", "both"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of records: in SQLite, in Parquet as far as they may be, or with a move stopped just before its end."""
    path = tmp_path_factory.mktemp("audit")
    fill(path, [RECORDS[:3], RECORDS[3:]])
    assert len(schema.files(path)) == 2
    if request.param == "cold":
        move(path, day(0))
        move(path, day(1))
    if request.param == "both":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiering, "_drop", lambda source: None)
            move(path, day(0))
    return path


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
        ({"after": 5}, [5, 6, 7]),
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
    assert all(len(page.records) <= limit for page in pages(directory, limit=limit))
    assert numbers(directory, limit=limit) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("filters", [{"limit": 10**9}, {"limit": 0}, {"after": -1}, {"subject": "x" * 300}])
def test_filters_have_bounds(filters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AuditQuery(**filters)


FIRST = datetime.fromtimestamp(NOW, UTC)


@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        (FIRST, FIRST - timedelta(seconds=1), "is not before"),
        (FIRST, FIRST + timedelta(days=400), "at most 31 days, this one 400"),
        (FIRST - timedelta(days=90), None, "at most 31 days, this one 90"),
        (None, datetime(1, 1, 1, tzinfo=UTC), "beyond"),
    ],
)
def test_ranges_have_bounds(directory: Path, since: datetime | None, until: datetime | None, why: str) -> None:
    with pytest.raises(e.InvalidInputError, match=why):
        query(directory, AuditQuery(since=since, until=until))


def test_a_range_that_is_too_long_is_answered_with_one_that_is_not(directory: Path) -> None:
    with pytest.raises(e.InvalidInputError) as caught:
        query(directory, AuditQuery(since=FIRST - timedelta(days=200), until=FIRST + timedelta(days=200)))
    nearest = datetime.fromisoformat(str(caught.value.nearest))
    query(directory, AuditQuery(since=nearest, until=FIRST + timedelta(days=200)))


def test_without_a_range_the_last_31_days_of_the_record_are_meant(tmp_path: Path) -> None:
    fill(tmp_path, [[record(1)], *[[]] * 39, [record(2, ts=FIRST + timedelta(days=40))]])
    assert numbers(tmp_path) == [2]
    assert numbers(tmp_path, until=FIRST + timedelta(days=1)) == [1]
    assert numbers(tmp_path, since=FIRST + timedelta(days=20)) == [2]


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    reader = schema.open_reader(schema.files(tmp_path)[0])
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
    assert (len(page.records), page.dropped_reads) == (8, 9)
    tenant = next(capability)
    assert [item.record.opid for item in (await service.query(tenant, AuditQuery())).records] == ["op-5"]
    with pytest.raises(e.CrossTenantError):
        await service.query(tenant, AuditQuery(resource="team-a/jobs/digits"))
    with pytest.raises(e.InvalidInputError, match="nearest legal value: 1000"):
        await service.query(tenant, AuditQuery(limit=1_001))


async def test_a_namespace_is_no_prefix_of_another(directory: Path) -> None:
    assert numbers(directory, namespace="team") == []
    assert numbers(directory, namespace="team-b", resource="team-b/jobs") == [5]


def test_reading_while_it_is_written_and_moved(tmp_path: Path) -> None:
    """A reader that pages through the store sees every record of before once, whatever happens meanwhile."""
    fill(tmp_path, [40, 40, 40])
    written = numbers(tmp_path)
    store, done = AuditStore(tmp_path, Clock(NOW + 2 * DAY)), threading.Event()

    def write_and_move() -> None:
        for number in range(2):
            store.append([Entry(record(number, ts=FIRST + timedelta(days=2)))])
            moved(tmp_path, day(number))
        done.set()

    mover = threading.Thread(target=write_and_move)
    mover.start()
    after_the_end = 0
    while after_the_end < 2:
        after_the_end += done.is_set()
        assert numbers(tmp_path, limit=7)[: len(written)] == written
    mover.join()
    store.close()
    assert [schema.day_of(path) for path in schema.files(tmp_path)] == [day(2)]
    assert numbers(tmp_path) == [*written, 0, 1]


def moved(directory: Path, which: date) -> None:
    """Move a day; while it is being read it is moved another time."""
    while True:
        try:
            move(directory, which)
            return
        except e.StorageError:
            continue
