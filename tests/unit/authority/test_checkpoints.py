"""When the record is signed, where the note goes, and that nothing which fails or restarts leaves a gap in it."""

import json
import shutil
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts import notes
from kuangchao_contracts.notes import CheckpointRefusedError
from kuangchao_operator.audit import retention, schema, tiering, tree
from kuangchao_operator.audit.checkpoints import due
from kuangchao_operator.audit.tree import Head
from kuangchao_operator.audit.verify import verify
from tests.unit.authority.kit import NOW
from tests.unit.authority.proven import DAY, Proven

TODAY = schema.day_of(Path("audit-2027-01-15.sqlite"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Proven]:
    world = Proven(tmp_path)
    yield world
    world.store.close()


def head(size: int, day: int = 0) -> Head:
    return Head(TODAY + timedelta(days=day), size, ())


@pytest.mark.parametrize(
    ("signed", "now", "age", "last", "expected"),
    [
        (None, head(1), 0, False, True),
        (head(5), head(6), 9.9, False, False),
        (head(5), head(6), 10, False, True),
        (head(5), head(1_004), 0, False, False),
        (head(5), head(1_005), 0, False, True),
        (head(5), head(5), 59.9, False, False),
        (head(5), head(5), 60, False, True),
        (head(5), head(1, day=1), 0, False, True),
        (head(5), head(6), 0, True, True),
        (head(5), head(5), 10, True, False),
    ],
    ids=["first", "soon after", "10 s", "999 more", "1,000 more", "nothing new", "idle", "new day", "the end",
         "the end, nothing new"],
)  # fmt: skip
def test_when(signed: Head | None, now: Head, age: float, last: bool, expected: bool) -> None:
    assert due(signed, now, age, last=last) is expected


async def test_a_checkpoint_is_in_the_file_in_the_logs_and_outside(world: Proven) -> None:
    await world.signed(7)
    (note,) = world.anchors
    said = notes.check(note, world.witness.keys)
    assert (said.size, said.root, said.day) == (7, world.store.tree.root, TODAY)
    line = json.loads(world.lines[0])
    assert "\n" not in world.lines[0]
    assert (line["event"], line["size"], line["checkpoint"]) == ("audit checkpoint", 7, note)
    with tree.reading(world.file) as reader:
        assert tree.newest(reader) == tree.Kept(7, said.root, note)


async def test_an_idle_store_says_that_it_still_is_what_it_was(world: Proven) -> None:
    await world.signed(7)
    world.clock.now += 60
    await world.checkpointer.tick()
    first, second = map(notes.parse, world.anchors)
    assert (second.size, second.root, second.time) == (first.size, first.root, first.time + 60)
    assert world.verify(2).ok
    assert world.verify().checkpoints == 1


async def test_proofs_from_one_checkpoint_to_the_next(world: Proven) -> None:
    for count in (3, 1, 100, 1_000, 24):
        await world.signed(count)
    assert [request.old_size for request in world.asked] == [0, 3, 4, 104, 1_104]
    report = world.verify(5)
    assert (report.ok, report.checkpoints, report.records, report.unsigned) == (True, 5, 1_128, 0)


async def test_a_day_is_closed_before_the_next_is_signed(world: Proven) -> None:
    await world.signed(3)
    world.add(2)
    world.clock.now += DAY
    world.add(1)
    await world.checkpointer.tick()
    assert [(r.day, r.size) for r in world.asked] == [(TODAY, 3), (TODAY, 5), (TODAY + timedelta(days=1), 2)]
    report = world.verify(1)
    assert (report.ok, report.files, report.problems) == (True, 2, ())


@pytest.mark.parametrize("part", ["issuer", "answer", "disk", "anchor"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("midnight", [False, True])
async def test_whatever_fails_is_made_up_for(world: Proven, part: str, restarted: bool, midnight: bool) -> None:
    await world.signed(3)
    world.down = {part}
    world.add(4)
    world.clock.now += DAY if midnight else 11
    world.add(4)
    with pytest.raises((e.UnavailableError, e.AuditUnavailableError)):
        await world.checkpointer.tick()
    late = world.checkpointer.age
    world.add(5)
    world.down = set()
    if restarted:
        world.restart()
    world.clock.now += 11
    await world.checkpointer.tick()
    report = world.verify(1)
    assert (report.ok, report.problems, report.unsigned) == (True, (), 0)
    assert notes.parse(world.anchors[-1]).size == world.store.tree.size
    assert world.checkpointer.age < 1
    assert late >= 11 or part == "anchor"


async def test_days_that_were_never_signed_are_signed_in_order(world: Proven) -> None:
    for _ in range(3):
        world.add(2)
        world.clock.now += DAY
    world.restart()
    await world.checkpointer.tick()
    assert [(r.day - TODAY).days for r in world.asked] == [0, 1, 2, 3]
    assert world.verify().ok


async def test_a_store_that_was_rolled_back_is_refused_and_goes_on_recording(world: Proven) -> None:
    await world.signed(3)
    copy = {path: path.read_bytes() for path in world.directory.glob("audit-*")}
    await world.signed(4)
    world.store.close()
    for path in world.directory.glob("audit-*"):
        path.unlink()
    for path, content in copy.items():
        path.write_bytes(content)
    world.start()
    for more in (1, 10):
        world.add(more, "another history")
        with pytest.raises(CheckpointRefusedError):
            await world.checkpointer.tick()
    assert world.checkpointer.refused == 2
    assert world.store.head[0] == 14
    assert not world.verify().ok
    world.clock.now += DAY
    world.add(1)
    await world.checkpointer.tick()
    assert notes.parse(world.anchors[-1]).day == TODAY + timedelta(days=1)


async def test_rows_that_were_changed_before_they_were_signed_are_not_signed(world: Proven) -> None:
    await world.signed(3)
    world.add(3)
    connection = schema.open_writer(world.file)
    connection.execute("UPDATE records SET body = CAST(replace(body, 'allow', 'deny') AS BLOB) WHERE seq = 5")
    connection.close()
    world.clock.now += 11
    with pytest.raises(e.StorageError, match="not those that were written"):
        await world.checkpointer.tick()
    assert len(world.anchors) == 1


async def test_a_clock_that_jumps_back_keeps_numbers_and_times_in_order(world: Proven) -> None:
    await world.signed(3)
    world.clock.now -= 600
    world.add(3)
    await world.checkpointer.tick()
    world.clock.now += 60
    await world.checkpointer.finish()
    first, second = map(notes.parse, world.anchors)
    assert (first.size, second.size, second.time) == (3, 6, first.time)
    report = world.verify(2)
    assert (report.ok, report.first, report.last) == (True, 1, 6)
    assert world.clock.now < NOW


async def test_the_end_of_the_process_waits_for_nobody(world: Proven) -> None:
    world.down = {"issuer"}
    world.add(1)
    await world.checkpointer.finish()
    world.down = set()
    await world.checkpointer.finish()
    assert world.verify().unsigned == 0


async def test_a_tree_goes_on_from_the_newest_checkpoint(world: Proven, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.signed(1_000)
    world.add(5)
    root, read = world.store.tree.root, []
    leaf_hash = tree.leaf_hash
    monkeypatch.setattr(tree, "leaf_hash", lambda body: read.append(body) or leaf_hash(body))
    world.restart()
    assert (world.store.tree.root, len(read)) == (root, 5)


@pytest.mark.parametrize("damage", ["UPDATE checkpoints SET peaks = zeroblob(32)", "UPDATE checkpoints SET note = ''",
                                    "UPDATE checkpoints SET peaks = x'00'"])  # fmt: skip
async def test_peaks_that_were_damaged_are_made_anew_from_the_records(world: Proven, damage: str) -> None:
    await world.signed(64)
    await world.signed(5)
    root = world.store.tree.root
    world.store.close()
    connection = schema.open_writer(world.file)
    connection.execute(f"{damage} WHERE size = 69")
    connection.close()
    world.start()
    assert world.store.tree.root == root
    await world.signed(3)
    assert notes.parse(world.anchors[-1]).size == 72


class TestTheNoteOutside:
    """Store and issuer are on one claim: whoever puts back an older copy of it sets both back."""

    async def set_back(self, world: Proven, to: int, later: int) -> None:
        """A copy after so many records, more of them, and the copy put in place of it all."""
        await world.signed(to)
        for folder in (world.directory, world.keys_directory):
            shutil.copytree(folder, folder.with_name(f"{folder.name}-copy"))
        await world.signed(later)
        world.store.close()
        for folder in (world.directory, world.keys_directory):
            shutil.rmtree(folder)
            folder.with_name(f"{folder.name}-copy").rename(folder)
        world.start()

    @pytest.mark.parametrize("more", [1, 4, 20])
    async def test_it_is_put_aside_before_another_history_replaces_it(self, world: Proven, more: int) -> None:
        await self.set_back(world, 3, 4)
        genuine = world.anchors[-1]
        world.down = {"evidence"}
        world.add(more, "another history")
        with pytest.raises(e.UnavailableError):
            await world.checkpointer.tick()
        assert world.anchors[-1] == genuine, "it would be lost"
        world.down = set()
        for _ in range(2):
            world.add(1)
            world.clock.now += 11
            await world.checkpointer.tick()
        assert (world.evidence, world.checkpointer.refused) == ([genuine], 1)
        assert notes.parse(world.anchors[-1]).size == 3 + more + 2
        assert world.verify().ok, "of itself the store is whole"
        (problem,) = verify(world.directory, world.witness.keys, world.evidence).problems
        assert "the anchor" in problem

    async def test_nor_by_a_store_with_other_keys(self, world: Proven) -> None:
        await world.signed(3)
        world.store.close()
        for folder in (world.directory, world.keys_directory):
            shutil.rmtree(folder)
        world.start()
        world.add(3)
        await world.checkpointer.tick()
        assert world.evidence == world.anchors[:1]

    async def test_nor_is_it_kept_by_a_day_that_cannot_be_read(self, world: Proven) -> None:
        """The new note must get out, and what it replaces stays."""
        await world.signed(3)
        world.restart()
        stone = retention.tombstone_of(world.directory, date(2020, 1, 1))
        stone.parent.mkdir()
        stone.write_text("{")
        await world.signed(2)
        assert (world.evidence, len(world.anchors)) == (world.anchors[:1], 2)

    @pytest.mark.parametrize("days", [0, 1, 3])
    async def test_it_is_replaced_by_what_continues_it(self, world: Proven, days: int) -> None:
        await world.signed(3)
        world.clock.now += days * DAY
        world.restart()
        if days:
            tiering.move(world.directory, TODAY)
        world.add(2)
        world.clock.now += 11
        await world.checkpointer.tick()
        assert len(world.anchors) == 2
        assert (world.checkpointer.refused, world.evidence) == (0, [])
        if days:
            retention.bury(world.directory, TODAY)
            world.anchors.pop()
            world.restart()
            await world.checkpointer.tick()
            assert len(world.anchors) == 2, "a tombstone continues it too"
