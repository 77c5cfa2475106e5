"""An audit volume that is full, read-only or hangs, and a flood that is to hide an act: on real parts."""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports.state import (
    CommitReply,
    CommitRequest,
    FaultDecision,
    FaultReport,
    RestorePointReply,
    RestorePointRequest,
    StateControl,
)
from kuangchao_operator.audit import sink as sink_module
from kuangchao_operator.audit.disk import BALLAST, DiskGuard, Space
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.store import AuditStore, Entry
from tests.unit.authority.kit import ATTEMPT, NOW, RESOURCE, Clock, FixedFence, Signer
from tests.unit.authority.records import record
from tests.unit.authority.shards import pages

OP = "state.restore_point"
ASKED = RestorePointRequest(attempt=ATTEMPT)
MIB = 1024 * 1024


class State(StateControl):
    """Counts what was done."""

    def __init__(self) -> None:
        self.done = 0

    async def assess(self, capability: Capability, request: FaultReport) -> FaultDecision:
        raise NotImplementedError

    async def commit_checkpoint(self, capability: Capability, request: CommitRequest) -> CommitReply:
        raise NotImplementedError

    async def restore_point(self, capability: Capability, request: RestorePointRequest) -> RestorePointReply:
        self.done += 1
        return RestorePointReply()


class World:
    """A gate with real tokens over a real store on a volume of the test's choice."""

    def __init__(self, directory: Path, guard: DiskGuard | None = None, **options: Any) -> None:
        self.clock, self.moment = Clock(NOW + 0.99), Clock(0.0)
        self.directory, self.signer, self.state = directory, Signer(self.clock), State()
        self.sink = StoreSink(directory, self.clock, guard=guard, monotonic=self.moment, **options)
        self.gate = Gate("operator", self.signer.verifier(), FixedFence(), self.sink, self.clock.moment)
        self.gate.register(self.state)

    async def act(self) -> None:
        await self.gate.call(self.signer.token(), OP, RESOURCE, ASKED)

    async def err(self) -> None:
        await self.gate.call(self.signer.token(att=ATTEMPT - 1), OP, RESOURCE, ASKED)

    async def refused(self) -> None:
        """A control call is refused and not carried out; a denial stays the denial that it is."""
        before = self.state.done
        with pytest.raises(e.AuditUnavailableError):
            await self.act()
        assert self.state.done == before
        with pytest.raises(e.StaleEpochError):
            await self.err()

    def records(self, **filters: Any) -> list[AuditRecord]:
        return [item.record for page in pages(self.directory, **filters) for item in page.records]

    def nothing_unlogged(self) -> None:
        intents = {r.opid for r in self.records(operation=OP) if r.stage is Stage.INTENT}
        results = {r.opid for r in self.records(operation=OP) if r.stage is Stage.RESULT}
        assert results <= intents
        assert len(results) == self.state.done

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the writer look at its volume until it has seen what it should."""
        async with asyncio.timeout(100):
            while not condition():
                self.moment.now += sink_module.POLL_SECONDS
                self.sink._wake.set()
                await asyncio.sleep(0)


async def started(world: World) -> World:
    await world.sink.start()
    world.clock.now += 10
    return world


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    path = tmp_path / "volume"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "audit", path], timeout=100, check=False)
    if done.returncode != 0:
        pytest.skip("this machine does not let us mount")
    yield path
    subprocess.run(["umount", "--lazy", path], timeout=100, check=True)


def fill(volume: Path, leave: int) -> Path:
    filler = volume / "filler"
    space = os.statvfs(volume)
    with filler.open("wb") as file:
        file.write(bytes(max(space.f_bavail * space.f_frsize - leave, 0)))
    return filler


async def test_a_volume_that_fills_up(volume: Path) -> None:
    world = await started(World(volume, DiskGuard(volume)))
    await world.until((volume / BALLAST).exists)
    await world.act()
    filler = fill(volume, leave=8 * MIB // 50)
    await world.until(lambda: not (volume / BALLAST).exists())
    await world.until(lambda: any(r.reason == "DiskFull" for r in world.records(operation="audit.disk")))
    await world.refused()
    world.sink.best_effort(record(7, stage=Stage.READ))
    assert world.sink.dropped == 1
    assert [r.reason for r in world.records(result=Decision.DENY)] == ["StaleEpoch"]  # the ballast made room for it
    filler.unlink()
    await world.until(partial(_said, world, ""))
    await world.act()
    await world.sink.close()
    assert (volume / BALLAST).exists()
    world.nothing_unlogged()
    assert [r.reason for r in world.records(operation="audit.disk")] == ["DiskFull", ""]


async def test_a_volume_without_a_byte_left(volume: Path) -> None:
    world = await started(World(volume))
    await world.act()
    filler = fill(volume, leave=0)
    await world.refused()
    await world.refused()
    filler.unlink()
    await world.act()
    await world.sink.close()
    world.nothing_unlogged()
    assert [r.reason for r in world.records(result=Decision.DENY)] == ["StaleEpoch"] * 2
    (outage,) = world.records(operation="audit.outage")
    assert "OperationalError" in outage.detail


async def test_a_read_only_volume_cannot_be_started_on(volume: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", volume], timeout=100, check=True)
    world = World(volume)
    with pytest.raises(e.AuditUnavailableError):
        await started(world)
    await world.refused()
    subprocess.run(["mount", "-o", "remount,rw", volume], timeout=100, check=True)
    await started(world)
    await world.act()
    await world.sink.close()
    world.nothing_unlogged()


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000"),
    ],
    ids=["read-only", "full"],
)
async def test_sqlite_cannot_write(tmp_path: Path, breaks: str, mends: str) -> None:
    """SQLite's own errors, without a volume of ours."""
    world = await started(World(tmp_path))
    await world.act()
    world.sink.store._connection.execute(breaks)
    for _ in range(30):  # so many records do not fit into pages that are there
        with contextlib.suppress(e.AuditUnavailableError):
            await world.act()
    await world.refused()
    world.sink.store._connection.execute(mends)
    await world.act()
    await world.sink.close()
    world.nothing_unlogged()
    assert [r.reason for r in world.records(result=Decision.DENY)] == ["StaleEpoch"]
    assert world.records(operation="audit.outage")


async def test_a_full_volume_is_said_once_and_reads_come_back(tmp_path: Path) -> None:
    free = [100]
    world = await started(World(tmp_path, DiskGuard(tmp_path, None, lambda _: Space(free[0], 1_000), ballast=0)))
    for free[0], reason in ((90, "DiskLow"), (40, "DiskFull"), (90, "DiskLow"), (100, "")):
        await world.until(partial(_said, world, reason))
        for number in range(3):
            world.sink.best_effort(record(number, stage=Stage.READ))
    await world.sink.close()
    assert [r.reason for r in world.records(operation="audit.disk")] == ["DiskLow", "DiskFull", "DiskLow", ""]
    assert world.sink.dropped == 9
    assert sum(r.count for r in world.records(operation="audit.dropped")) == 9
    assert sum(r.stage is Stage.READ for r in world.records()) == 3


def _said(world: World, reason: str) -> bool:
    return [r.reason for r in world.records(operation="audit.disk")[-1:]] == [reason]


class Hanging:
    """A disk that does not answer until told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.entered = threading.Event(), threading.Event()
        original = AuditStore.append

        def append(store: AuditStore, entries: Sequence[Entry]) -> Any:
            self.entered.set()
            assert self.go_on.wait(30)
            return original(store, entries)

        monkeypatch.setattr(AuditStore, "append", append)


async def test_a_volume_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await started(World(tmp_path))
    await world.act()
    disk = Hanging(monkeypatch)
    monkeypatch.setattr(sink_module, "WRITE_TIMEOUT_SECONDS", 0.05)
    await world.refused()
    assert not world.sink.blocked
    world.moment.now += 5.1
    assert world.sink.blocked
    await world.refused()
    disk.go_on.set()
    await world.until(lambda: not world.sink.blocked)
    monkeypatch.setattr(sink_module, "WRITE_TIMEOUT_SECONDS", 10.0)
    await world.act()
    await world.sink.close()
    world.nothing_unlogged()
    assert [r.reason for r in world.records(result=Decision.DENY)] == ["StaleEpoch"] * 2


async def test_not_ready_while_writes_fail_and_ready_again_without_a_call(tmp_path: Path) -> None:
    world = await started(World(tmp_path))
    world.sink.store._connection.execute("PRAGMA query_only = 1")
    await world.refused()
    assert not world.sink.blocked
    world.moment.now += 5.1
    assert world.sink.blocked
    world.sink.store._connection.execute("PRAGMA query_only = 0")
    await world.until(lambda: not world.sink.blocked)
    await world.sink.close()
    (outage,) = world.records(operation="audit.outage")
    assert outage.detail.endswith("2 records refused")


async def test_a_flood_of_reads_hides_no_denial(tmp_path: Path) -> None:
    world = await started(World(tmp_path, lane_b=2_000))
    sent = 20_000
    for number in range(sent):
        world.sink.best_effort(record(number, stage=Stage.READ, op="governance.query"))
        if number == sent // 2:
            with pytest.raises(e.StaleEpochError):
                await world.err()
        if number % 5_000 == 0:
            await asyncio.sleep(0)
    await world.sink.close()
    records = world.records(limit=10_000)
    stored = sum(r.stage is Stage.READ for r in records)
    dropped = sum(r.count for r in records if r.op == "audit.dropped")
    assert [r.reason for r in records if r.stage is Stage.DENY] == ["StaleEpoch"]
    assert 0 < dropped == world.sink.dropped
    assert stored + dropped == sent


async def test_dropped_reads_are_told_by_operation_and_namespace(tmp_path: Path) -> None:
    world = await started(World(tmp_path, lane_b=0))
    for number, (op, namespace) in enumerate([("a.read", "team-a"), ("a.read", "team-b"), ("a.read", "team-a")]):
        world.sink.best_effort(
            record(number, stage=Stage.READ, op=op, resource=f"{namespace}/jobs/x", count=number + 1)
        )
    await world.sink.close()
    told = {(r.resource, r.count) for r in world.records(operation="audit.dropped")}
    assert told == {("team-a/audit/records", 4), ("team-b/audit/records", 2)}


async def test_waiting_records_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "LANE_B_BYTES", 100_000)
    world = await started(World(tmp_path))
    disk = Hanging(monkeypatch)
    control = asyncio.create_task(world.sink.durable(record(0)))
    await asyncio.to_thread(disk.entered.wait, 10)
    for number in range(1_000):
        world.sink.best_effort(record(number, stage=Stage.READ, detail="x" * 1_000))
    disk.go_on.set()
    await control
    await world.sink.close()
    kept = sum(r.stage is Stage.READ for r in world.records())
    assert 50 < kept < 100
    assert kept + world.sink.dropped == 1_000


def test_nothing_of_a_flood_waits_beyond_the_budget() -> None:
    assert 2 * sink_module.LANE_A_BYTES + sink_module.LANE_B_BYTES == 64 * MIB


async def test_drops_in_an_outage_are_told_after_it_and_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await started(World(tmp_path, lane_a=1, lane_b=0))
    tell, told = world.sink._tell_dropped, []
    monkeypatch.setattr(world.sink, "_tell_dropped", lambda: told.append(tell()))
    world.sink.store._connection.execute("PRAGMA query_only = 1")
    await world.refused()
    for number in range(5):
        world.sink.best_effort(record(number, stage=Stage.READ))
        world.clock.now += sink_module.DROPPED_EVERY_SECONDS + 1
        await world.until(partial(_more_than, told, number))
    world.sink.store._connection.execute("PRAGMA query_only = 0")
    await world.until(lambda: not world.sink._outage.failing)
    await world.sink.close()
    assert sum(r.count for r in world.records(operation="audit.dropped")) == world.sink.dropped == 5


def _more_than(found: list[Any], number: int) -> bool:
    return len(found) > number
