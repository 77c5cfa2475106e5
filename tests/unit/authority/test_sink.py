"""The sink in front of the store: durable or refused, reads dropped first, nothing uncounted."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery, AuditRecord, Decision, Stage
from kuangchao_contracts.run import Empty
from kuangchao_operator.audit import schema
from kuangchao_operator.audit import sink as sink_module
from kuangchao_operator.audit.coalesce import VERBATIM
from kuangchao_operator.audit.k8s import KubernetesIntake
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.verify import verify
from tests.unit.authority.kit import NOW, RESOURCE, Clock, MemorySink
from tests.unit.authority.records import record


def denial(**changes: Any) -> AuditRecord:
    return record(stage=Stage.DENY, decision=Decision.DENY, reason="StaleEpoch", **changes)


def stored(directory: Path, **filters: Any) -> list[AuditRecord]:
    return [item.record for item in query(directory, AuditQuery(limit=10_000, **filters)).records]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW + 0.99)  # a new store waits for the next second


@pytest.fixture
async def sink(tmp_path: Path, clock: Clock) -> AsyncIterator[StoreSink]:
    sink = StoreSink(tmp_path, clock)
    await sink.start()
    clock.now += 2
    yield sink
    await sink.close()


class Disk:
    """Stands between sink and store: can fail, and can hold a write until told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self.go_on, self.writing = threading.Event(), threading.Event()
        self.go_on.set()
        self.batches: list[int] = []
        original = AuditStore.append

        def append(store: AuditStore, entries: Sequence[Entry]) -> list[e.CapabilityError | None]:
            self.writing.set()
            assert self.go_on.wait(30)
            if self.fails:
                raise e.AuditUnavailableError("disk full")
            self.batches.append(len(entries))
            return original(store, entries)

        monkeypatch.setattr(AuditStore, "append", append)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_stored_when_it_returns(sink: StoreSink, tmp_path: Path) -> None:
    await sink.durable(record(1))
    assert [r.opid for r in stored(tmp_path)] == ["op-1"]


async def test_many_writers_share_commits(sink: StoreSink, disk: Disk, tmp_path: Path) -> None:
    await asyncio.gather(*(sink.durable(record(n)) for n in range(1_000)))
    assert len(disk.batches) < 50
    assert [r.opid for r in stored(tmp_path)] == [f"op-{n}" for n in range(1_000)]
    assert verify(tmp_path).ok


async def test_fifty_parallel_uses_of_a_one_shot(sink: StoreSink, clock: Clock) -> None:
    consume = ("jti", int(clock()) + 60, int(clock()))
    uses = [sink.durable(record(n, stage=Stage.INTENT), consume) for n in range(50)]
    answers = await asyncio.gather(*uses, return_exceptions=True)
    assert answers.count(None) == 1
    assert sum(isinstance(a, e.ReplayedTokenError) for a in answers) == 49


async def test_failing_disk_refuses_control_calls_and_heals_without_restart(
    sink: StoreSink, disk: Disk, tmp_path: Path
) -> None:
    disk.fails = True
    with pytest.raises(e.AuditUnavailableError):
        await sink.durable(record(1, stage=Stage.INTENT))
    disk.fails = False
    await sink.durable(record(2))
    outage, after = stored(tmp_path)
    assert (outage.op, outage.stage, outage.detail) == ("audit.outage", Stage.SYSTEM, "disk full; 1 records refused")
    assert (after.opid, sink.refused) == ("op-2", 1)


async def test_what_has_happened_is_written_once_the_disk_works(sink: StoreSink, disk: Disk, tmp_path: Path) -> None:
    disk.fails = True
    for item in (record(1, stage=Stage.RESULT), denial(number=2)):
        with pytest.raises(e.AuditUnavailableError):
            await sink.durable(item)
    sink.step_denied(denial(number=3))
    sink.best_effort(record(4, stage=Stage.READ))
    disk.fails = False
    await sink.close()
    assert {"op-1", "op-2", "op-3"} <= {r.opid for r in stored(tmp_path)}


async def test_hanging_disk_is_refused_in_time(
    sink: StoreSink, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sink_module, "WRITE_TIMEOUT_SECONDS", 0.05)
    disk.go_on.clear()
    sink.step_denied(denial(number=1))
    await asyncio.to_thread(disk.writing.wait, 10)
    with pytest.raises(e.AuditUnavailableError, match="in time"):
        await sink.durable(record(2, stage=Stage.INTENT))
    disk.go_on.set()
    monkeypatch.setattr(sink_module, "WRITE_TIMEOUT_SECONDS", 10.0)
    await sink.durable(record(3))
    assert [r.opid for r in stored(tmp_path)] == ["op-1", "op-3"]  # nobody acts on the refused intent: not stored


async def test_full_lane_is_refused(tmp_path: Path, clock: Clock, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "FULL_WAIT_SECONDS", 0.05)
    sink = StoreSink(tmp_path, clock, lane_a=2)
    await sink.start()
    disk.go_on.clear()
    disk.writing.clear()
    waiting = [asyncio.create_task(sink.durable(record(1)))]
    await asyncio.to_thread(disk.writing.wait, 10)
    waiting += [asyncio.create_task(sink.durable(record(n))) for n in (2, 3)]
    await asyncio.sleep(0)
    with pytest.raises(e.AuditUnavailableError, match="too many"):
        await sink.durable(record(4))
    disk.go_on.set()
    await asyncio.gather(*waiting)
    await sink.close()
    assert len(stored(tmp_path)) == 3


async def test_reads_are_dropped_first_and_counted_exactly(tmp_path: Path, clock: Clock, disk: Disk) -> None:
    sink = StoreSink(tmp_path, clock, lane_b=10)
    await sink.start()
    disk.go_on.clear()
    disk.writing.clear()
    control = asyncio.create_task(sink.durable(record(0)))
    await asyncio.to_thread(disk.writing.wait, 10)
    for number in range(1, 1_001):
        sink.best_effort(record(number, stage=Stage.READ))
    refused = asyncio.create_task(sink.durable(denial(number=5_000)))
    disk.go_on.set()
    await asyncio.gather(control, refused)
    await sink.close()
    records = stored(tmp_path)
    reads = [r for r in records if r.stage is Stage.READ]
    dropped = [r for r in records if r.op == "audit.dropped"]
    assert (len(reads), sink.dropped) == (10, 990)
    assert sum(r.count for r in dropped) == 990
    assert any(r.opid == "op-5000" for r in records)


async def test_a_flood_of_equal_denials_is_counted_exactly(sink: StoreSink, tmp_path: Path) -> None:
    for _ in range(VERBATIM + 5_000):
        await sink.durable(denial())
    await sink.durable(denial(subject="agent:other"))
    await sink.close()
    denials = stored(tmp_path, result=Decision.DENY)
    assert len(denials) == VERBATIM + 2
    assert sum(r.count for r in denials) == VERBATIM + 5_001
    assert max(r.count for r in denials) == 5_000


async def test_step_calls_become_one_record_with_the_exact_count(sink: StoreSink, tmp_path: Path) -> None:
    for _ in range(5_000):
        sink.step("execution.heartbeat", RESOURCE, "agent:a", Empty())
    sink.step("execution.heartbeat", RESOURCE, "agent:b", Empty())
    await sink.close()
    assert {(r.subject, r.job, r.count, r.stage) for r in stored(tmp_path)} == {
        ("agent:a", "digits", 5_000, Stage.READ),
        ("agent:b", "digits", 1, Stage.READ),
    }


async def test_a_closed_sink_refuses(tmp_path: Path, clock: Clock) -> None:
    sink = StoreSink(tmp_path, clock)
    with pytest.raises(e.AuditUnavailableError):
        await sink.durable(record(1))
    sink.best_effort(record(2, stage=Stage.READ))
    assert sink.dropped == 1


async def test_a_one_shot_minted_after_the_start_of_a_new_store_is_good(tmp_path: Path) -> None:
    sink = StoreSink(tmp_path, time.time)
    await sink.start()
    now = int(time.time())
    await sink.durable(record(1, stage=Stage.INTENT), ("jti", now + 60, now))
    await sink.close()


EVENT: dict[str, Any] = {
    "auditID": "0d0ec3b8-8a4b-4dc4-9c3e-6f8d4f4c1a11",
    "stage": "ResponseComplete",
    "verb": "delete",
    "user": {"username": "alice", "groups": ["system:masters"], "uid": "7"},
    "impersonatedUser": {"username": "bob"},
    "objectRef": {"resource": "trainingjobs", "namespace": "team-a", "name": "digits", "apiGroup": "kuangchao.io"},
    "responseStatus": {"code": 200, "metadata": {}},
    "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
}


class TestKubernetesEvents:
    @pytest.fixture
    def taken(self, clock: Clock) -> Any:
        memory = MemorySink()
        return memory.records, KubernetesIntake(memory, clock)

    def test_names_the_person(self, taken: Any) -> None:
        records, intake = taken
        assert intake.take({"items": [EVENT]}) == 1
        (made,) = records
        assert (made.subject, made.op, made.resource) == (
            "user:alice",
            "kubernetes.delete",
            "team-a/trainingjobs/digits",
        )
        assert (made.decision, made.job, made.detail) == (Decision.ALLOW, "digits", "acting as bob")

    def test_takes_an_event_once_and_only_when_it_is_over(self, taken: Any) -> None:
        _, intake = taken
        early = EVENT | {"stage": "RequestReceived"}
        assert [intake.take({"items": [event]}) for event in (early, EVENT, EVENT)] == [0, 1, 0]

    @pytest.mark.parametrize(
        ("code", "decision"), [(403, Decision.DENY), (401, Decision.DENY), (500, Decision.ERROR), (404, Decision.ERROR)]
    )
    def test_refused_requests(self, taken: Any, code: int, decision: Decision) -> None:
        records, intake = taken
        intake.take({"items": [EVENT | {"responseStatus": {"code": code}}]})
        assert (records[0].decision, records[0].reason) == (decision, f"HTTP{code}")

    @pytest.mark.parametrize(
        "body", [{}, {"items": 3}, {"items": [3]}, {"items": [{"verb": "get"}]}, {"items": [None]}]
    )
    def test_what_is_no_event_is_counted(self, taken: Any, body: dict[str, Any]) -> None:
        records, intake = taken
        assert intake.take(body) == 0
        assert (records, intake.refused) == ([], 1)

    def test_hostile_text_is_made_printable(self, taken: Any) -> None:
        records, intake = taken
        intake.take({"items": [EVENT | {"user": {"username": "a\n\x1b[2J" + "x" * 10_000}, "verb": "get\n"}]})
        assert records[0].subject.isprintable()
        assert len(records[0].subject) == 256
        assert records[0].op.isprintable()


def in_the_way(directory: Path) -> None:
    directory.write_text("a file where a directory should be")


def damaged(directory: Path) -> None:
    directory.mkdir()
    schema.file_of(directory, datetime.fromtimestamp(NOW, UTC).date()).write_bytes(b"no database" * 1_000)


def open_intent_damaged(directory: Path) -> None:
    """Found only when the store is open already."""
    store = AuditStore(directory, Clock())
    store.append([Entry(record(stage=Stage.INTENT))])
    store.close()
    with closing(sqlite3.connect(schema.files(directory)[0], isolation_level=None)) as connection:
        connection.execute("UPDATE records SET body = ?", (b'{"secret":1}',))


def record_as_text(directory: Path) -> None:
    open_intent_damaged(directory)
    with closing(sqlite3.connect(schema.files(directory)[0], isolation_level=None)) as connection:
        connection.execute("UPDATE records SET body = CAST(body AS TEXT)")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (in_the_way, "FileExistsError: "),
        (damaged, "DatabaseError: file is not a database"),
        (record_as_text, "it holds a record that cannot be read; see audit verify"),
        (open_intent_damaged, "it holds a record that cannot be read; see audit verify"),
    ],
)
async def test_a_store_that_cannot_be_opened_says_why_and_may_be_opened_later(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    directory, now = tmp_path / "audit", [0.0]
    harm(directory)
    sink = StoreSink(directory, Clock(NOW + 0.99), monotonic=lambda: now[0])
    for _ in range(2):
        with pytest.raises(e.AuditUnavailableError) as caught:
            await sink.start()
        assert str(caught.value).startswith(f"audit store {directory} cannot be opened: {why}")
        assert "secret" not in str(caught.value)
    with pytest.raises(e.AuditUnavailableError):
        await sink.durable(record())
    now[0] += 6
    assert sink.blocked, "the metric says so"
    directory.rename(tmp_path / "put-aside")
    await sink.start()
    await sink.durable(record())
    assert not sink.blocked
    await sink.close()
    (outage,) = stored(directory, operation="audit.outage")
    assert why in outage.detail
