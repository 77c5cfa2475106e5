"""The store: durable, chained, one-shots used up once, across days, restarts and a killed writer."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery, Decision, Stage
from kuangchao_contracts.auditproof import ShardEnd
from kuangchao_operator.audit import schema
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.verify import verify
from tests.unit.authority.kit import NOW, Clock
from tests.unit.authority.records import record

DAY = 86_400
EPOCH = int(NOW)


class World:
    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.store = AuditStore(directory, self.clock)

    def add(self, count: int = 1) -> None:
        first = self.store.head[0] + 1
        assert self.store.append([Entry(record(first + i)) for i in range(count)]) == [None] * count

    def use(self, jti: str, iat: int = EPOCH + 1) -> e.CapabilityError | None:
        entry = Entry(record(stage=Stage.INTENT, decision=Decision.ERROR, opid=jti), (jti, iat + 60, iat))
        return self.store.append([entry])[0]

    def restart(self) -> None:
        self.store.close()
        self.store = AuditStore(self.directory, self.clock)

    @property
    def file(self) -> Path:
        return schema.files(self.directory)[-1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "audit")
    yield world
    world.store.close()


def test_records_form_one_chain_over_days_and_restarts(world: World) -> None:
    world.add(3)
    world.clock.now += DAY
    world.add(2)
    world.restart()
    world.add(1)
    world.clock.now += 3 * DAY
    world.restart()
    world.add(1)
    assert len(schema.files(world.directory)) == 3
    report = verify(world.directory)
    assert (report.ok, report.records, report.files) == (True, 9, 3)
    assert (report.last, report.head) == world.store.head
    assert query(world.directory, AuditQuery()).records[0].previous == schema.GENESIS


def test_each_day_begins_with_how_the_one_before_ended(world: World) -> None:
    world.add(3)
    first = world.store.tree
    world.clock.now += DAY
    world.add(2)
    second = world.store.tree
    world.clock.now += 3 * DAY
    world.restart()
    said = [i.record for i in query(world.directory, AuditQuery()).records if i.record.op == schema.SHARD_OP]
    assert [ShardEnd.model_validate_json(record.detail) for record in said] == [first.end(), second.end()]
    assert (first.size, second.size, world.store.tree.size) == (3, 3, 1)


def test_a_day_that_was_only_begun_is_begun_again(world: World) -> None:
    world.add(3)
    world.store.close()
    world.clock.now += DAY
    schema.open_writer(schema.file_of(world.directory, world.clock.moment().date())).close()
    world.store = AuditStore(world.directory, world.clock)
    assert world.store.head[0] == 4
    assert isinstance(world.use("a", EPOCH + DAY), e.ReplayStoreLostError)
    world.add(1)
    assert verify(world.directory).ok


@pytest.mark.parametrize(
    "written",
    [None, "PRAGMA journal_mode=WAL", "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"],
)
def test_a_file_that_was_made_and_not_filled_keeps_nobody_from_starting(world: World, written: str | None) -> None:
    """The volume was full at midnight, or the writer stopped, before all tables were there."""
    world.add(3)
    world.store.close()
    world.clock.now += DAY
    path = schema.file_of(world.directory, schema.day_of(world.file) + timedelta(days=1))
    path.touch()
    if written is not None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(written)
    world.store = AuditStore(world.directory, world.clock)
    world.add(1)
    report = verify(world.directory)
    assert (report.ok, report.problems, report.records) == (True, (), 5)


def test_what_is_named_after_no_day_is_none_of_ours(world: World) -> None:
    world.add(3)
    (world.directory / "audit-2027-13-45.sqlite").write_text("a copy that somebody put here")
    (world.directory / "cold" / "day=2027-02-30").mkdir(parents=True)
    world.restart()
    world.add(1)
    assert verify(world.directory).ok
    assert len(query(world.directory, AuditQuery()).records) == 4


def test_a_clock_that_jumps_back_keeps_order(world: World) -> None:
    world.clock.now += 2 * DAY
    world.add(1)
    world.clock.now -= 5 * DAY
    world.add(1)
    world.restart()
    world.add(1)
    assert verify(world.directory).ok
    assert [item.seq for item in query(world.directory, AuditQuery()).records] == [1, 2, 3]


def test_stored_bytes_are_the_hashed_bytes(world: World) -> None:
    world.add(2)
    connection = schema.open_reader(world.file)
    first, second = (row[0] for row in connection.execute("SELECT body FROM records ORDER BY seq"))
    connection.close()
    assert schema.digest(first) in second.decode()
    assert schema.digest(second) == world.store.head[1]


class TestOneShots:
    def test_once(self, world: World) -> None:
        assert world.use("a") is None
        assert isinstance(world.use("a"), e.ReplayedTokenError)
        assert world.store.head[0] == 1

    def test_once_within_a_batch(self, world: World) -> None:
        entry = Entry(record(), ("a", EPOCH + 60, EPOCH + 1))
        outcomes = world.store.append([entry] * 50)
        assert outcomes.count(None) == 1
        assert world.store.head[0] == 1

    def test_once_across_a_restart_and_midnight(self, world: World) -> None:
        assert world.use("a") is None
        world.restart()
        assert isinstance(world.use("a"), e.ReplayedTokenError)
        late = EPOCH - EPOCH % DAY + DAY - 1
        world.clock.now = late
        assert world.use("b", late) is None
        world.clock.now = late + 2
        assert isinstance(world.use("b", late), e.ReplayedTokenError)
        assert len(schema.files(world.directory)) == 2

    def test_forgotten_only_after_it_can_no_longer_be_used(self, world: World) -> None:
        assert world.use("a") is None
        world.clock.now += 1 + 60 + 59
        world.add()
        assert isinstance(world.use("a"), e.ReplayedTokenError)
        world.clock.now += 120
        world.add()
        reader = schema.open_reader(world.file)
        assert reader.execute("SELECT count(*) FROM used_jti").fetchone() == (0,)
        reader.close()

    def test_a_lost_store_refuses_what_it_may_have_seen(self, world: World) -> None:
        assert world.use("a") is None
        world.store.close()
        for path in world.directory.iterdir():
            path.unlink()
        world.clock.now += 10
        world.store = AuditStore(world.directory, world.clock)
        assert isinstance(world.use("a"), e.ReplayStoreLostError)
        assert isinstance(world.use("b", EPOCH + 10), e.ReplayStoreLostError)
        assert world.use("c", EPOCH + 11) is None
        world.restart()
        assert isinstance(world.use("a"), e.ReplayStoreLostError)

    def test_a_lost_file_of_today_is_noticed_though_older_ones_are_there(self, world: World) -> None:
        world.clock.now += DAY
        assert world.use("a", EPOCH + DAY) is None
        lost = world.file
        world.store.close()
        for path in world.directory.glob(lost.name + "*"):
            path.unlink()
        world.store = AuditStore(world.directory, world.clock)
        assert isinstance(world.use("a", EPOCH + DAY), e.ReplayStoreLostError)


def test_failed_batch_leaves_nothing_and_the_chain_goes_on(world: World) -> None:
    world.add(1)
    head = world.store.head
    blocker = sqlite3.connect(world.file, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(e.AuditUnavailableError):
        world.use("a")
    blocker.execute("ROLLBACK")
    blocker.close()
    assert world.store.head == head
    assert world.use("a") is None
    assert verify(world.directory).ok


def test_one_writer_at_a_time(world: World) -> None:
    with pytest.raises(e.AuditUnavailableError, match="another process"):
        AuditStore(world.directory, world.clock)


def test_intents_without_result_are_found_over_a_restart_and_midnight(world: World) -> None:
    intent = record(1, stage=Stage.INTENT, decision=Decision.ERROR, opid="open")
    done = [record(2, stage=Stage.INTENT, opid="done"), record(3, stage=Stage.RESULT, opid="done")]
    world.store.append([Entry(r) for r in (intent, *done)])
    world.clock.now += DAY
    world.restart()
    assert world.store.open_intents() == [intent]
    world.store.append([Entry(intent.replace(stage=Stage.RESULT))])
    assert world.store.open_intents() == []


WRITER = """
import sys, time
from pathlib import Path
from kuangchao_operator.audit.store import AuditStore, Entry
from tests.unit.authority.records import record
from kuangchao_contracts.audit import Stage
store = AuditStore(Path(sys.argv[1]), lambda: 1_800_000_000.0)
store.append([Entry(record(stage=Stage.INTENT, opid="killed"), ("jti", 1_800_000_061, 1_800_000_001))])
print("intent", flush=True)
sys.stdin.read()
"""


def test_a_writer_killed_between_intent_and_result(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "intent\n"
        process.send_signal(signal.SIGKILL)
    clock = Clock(NOW + 5)
    store = AuditStore(tmp_path, clock)
    (killed,) = store.open_intents()
    assert killed.opid == "killed"
    store.append([Entry(killed.replace(stage=Stage.RESULT))])
    again = Entry(record(stage=Stage.INTENT), ("jti", EPOCH + 61, EPOCH + 1))
    assert isinstance(store.append([again])[0], e.ReplayedTokenError)
    store.close()
    assert [item.record.stage for item in query(tmp_path, AuditQuery()).records] == [Stage.INTENT, Stage.RESULT]
    assert verify(tmp_path).ok


def sql(*statements: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    return run


TAMPER: dict[str, Callable[[Path], None]] = {
    "subject in body": sql("UPDATE records SET body = replace(body, 'digits', 'digitz') WHERE seq = 5"),
    "decision in body": sql("UPDATE records SET body = CAST(replace(body, 'allow', 'deny') AS BLOB) WHERE seq = 5"),
    "column only": sql("UPDATE records SET subject = 'nobody' WHERE seq = 5"),
    "time column": sql("UPDATE records SET ts = ts + 1 WHERE seq = 5"),
    "removed": sql("DELETE FROM records WHERE seq = 5"),
    "first removed": sql("DELETE FROM records WHERE seq = 1"),
    "renumbered": sql("DELETE FROM records WHERE seq = 5", "UPDATE records SET seq = seq - 1 WHERE seq > 5"),
    "swapped": sql("UPDATE records SET seq = 99 WHERE seq = 5", "UPDATE records SET seq = 5 WHERE seq = 6",
                   "UPDATE records SET seq = 6 WHERE seq = 99"),
    "not JSON": sql("UPDATE records SET body = x'00' WHERE seq = 5"),
    "file damaged": lambda path: path.write_bytes(b"\0" * 4_096),
}  # fmt: skip


@pytest.mark.parametrize("tamper", TAMPER.values(), ids=TAMPER)
def test_tampering_is_found_and_placed(tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    world = World(tmp_path)
    world.add(10)
    world.store.close()
    assert verify(tmp_path).ok
    tamper(world.file)
    report = verify(tmp_path)
    assert not report.ok
    assert report.problems[0].startswith(world.file.name)


def test_a_lost_day_in_the_middle_is_found(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.add(2)
        world.clock.now += DAY
    world.store.close()
    lost = schema.files(tmp_path)[1]
    lost.unlink()
    assert f"{schema.day_of(lost)} is missing and has no tombstone" in verify(tmp_path).problems[0]
