"""The duty that keeps the store small: what is moved and removed when, and what is recorded of it."""

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import Decision, Stage
from kuangchao_operator.audit import cold, retention, schema, tiering
from kuangchao_operator.audit.archive import Archive, Keeping
from kuangchao_operator.audit.retention import bury, expired, tombstones
from kuangchao_operator.audit.tiering import move
from tests.unit.authority.kit import NOW, Clock, MemorySink
from tests.unit.authority.shards import DAY, StoppedError, day, fill, numbers, stop


def ago(*days: int) -> list[date]:
    return [day() - timedelta(days=number) for number in days]


@pytest.mark.parametrize(
    ("hot", "stored", "expected"),
    [
        ([0], [91, 90, 89], [91, 90]),
        ([90, 0], [91, 89], [91]),  # one day could not be moved: what is younger waits for it
        ([92, 0], [91], []),
        ([], [90], [90]),
        ([0], [], []),
    ],
)
def test_which_days_are_removed(hot: list[int], stored: list[int], expected: list[int]) -> None:
    assert expired(ago(*hot), ago(*stored), day(), 90) == ago(*expected)


class Store:
    """Eleven days of records, the last of them today, and the duty over them."""

    def __init__(self, directory: Path, hot: int = 7, everything: int = 9) -> None:
        fill(directory, [3] * 11)
        self.directory, self.sink, self.clock = directory, MemorySink(), Clock(NOW + 10 * DAY)
        self.archive = Archive(directory, self.sink, self.clock.moment, Keeping(hot, everything), "operator")

    def days(self) -> tuple[list[date], list[date], list[date]]:
        hot = [schema.day_of(path) for path in schema.files(self.directory)]
        return [stone.day for stone in tombstones(self.directory)], cold.days(self.directory), hot


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


async def test_days_go_from_hot_to_cold_to_a_tombstone(store: Store) -> None:
    before, ended = numbers(store.directory), move(store.directory, day())
    await store.archive.tidy()
    assert store.archive.failed == 0
    assert store.days() == ([day(0), day(1)], [day(2), day(3)], [day(n) for n in range(4, 11)])
    assert numbers(store.directory) == before[6:]
    assert tombstones(store.directory)[0] == ended
    text = retention.tombstone_of(store.directory, day()).read_text()
    assert {"day", "size", "root", "checkpoint"} <= json.loads(text).keys()
    assert list((store.directory / cold.FOLDER).glob(".*-*")) == []


async def test_a_removal_is_recorded_before_and_after(store: Store) -> None:
    await store.archive.tidy()
    first = [(r.op, r.resource, r.stage, r.decision) for r in store.sink.records[:2]]
    where = f"_cluster/audit/{day().isoformat()}"
    assert first == [
        ("audit.retire", where, Stage.INTENT, Decision.ERROR),
        ("audit.retire", where, Stage.RESULT, Decision.ALLOW),
    ]
    assert tombstones(store.directory)[0].root in store.sink.records[0].detail
    assert len({r.opid for r in store.sink.records}) == 2


async def test_without_a_record_nothing_is_removed(store: Store) -> None:
    store.sink.broken = True
    await store.archive.tidy()
    assert store.days()[:2] == ([], [day(n) for n in range(4)])
    store.sink.broken = False
    await store.archive.tidy()
    assert store.days()[:2] == ([day(0), day(1)], [day(2), day(3)])


async def test_what_cannot_be_moved_keeps_what_is_younger_from_being_removed(store: Store) -> None:
    schema.file_of(store.directory, day()).write_bytes(b"not a database" * 100)
    await store.archive.tidy()
    assert store.archive.failed == 1
    assert store.days() == ([], [day(n) for n in range(1, 4)], [day(0), *(day(n) for n in range(4, 11))])


async def test_a_failed_removal_is_recorded_as_one(store: Store) -> None:
    (store.directory / retention.FOLDER).write_text("in the way")
    await store.archive.tidy()
    assert [(r.stage, r.decision) for r in store.sink.records] == [
        (Stage.INTENT, Decision.ERROR),
        (Stage.RESULT, Decision.ERROR),
    ]
    assert store.days()[1] == [day(n) for n in range(4)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("module", "name", "nth"),
    [(cold, "write_summary", 1), *((retention, "sync_path", nth) for nth in (1, 2, 3)), (retention, "sweep", 1)],
)
def test_stopped_anywhere_a_removal_is_finished_the_next_time(
    tmp_path: Path, module: Any, name: str, after: bool, nth: int
) -> None:
    fill(tmp_path, [5, 5])
    everything = numbers(tmp_path)
    summary = move(tmp_path, day())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, stop(getattr(module, name), nth, after))
        with pytest.raises(StoppedError):
            bury(tmp_path, day())
    assert numbers(tmp_path) in (everything, everything[5:])
    if cold.shard_of(tmp_path, day()).exists():
        bury(tmp_path, day())
    retention.sweep(tmp_path)
    assert tombstones(tmp_path) == [summary]
    assert numbers(tmp_path) == everything[5:]
    assert [path.name for path in (tmp_path / cold.FOLDER).iterdir()] == [tiering.LOCK]


def test_a_tombstone_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    stone = retention.tombstone_of(tmp_path, day())
    stone.parent.mkdir()
    stone.write_text("{}")
    with pytest.raises(e.StorageError):
        tombstones(tmp_path)
