"""The witness signs one history: what continues what it signed before, across restarts, and nothing else."""

import stat
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from kuangchao_contracts import merkle, notes
from kuangchao_contracts.notes import CheckpointRefusedError, CheckpointRequest
from kuangchao_operator.signing.witness import KEPT_DAYS, KEY_FILE, Witness
from tests.unit.authority.kit import ISSUER, NOW, Clock

DAY = datetime.fromtimestamp(NOW, UTC).date()


class World:
    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.restart()

    def restart(self) -> None:
        self.witness = Witness(self.directory, ISSUER, self.clock)

    def sign(self, size: int, day: date = DAY, **changes: object) -> notes.Checkpoint:
        note = self.witness.sign(request(size, self.size(day), day).replace(**changes))
        return notes.check(note, self.witness.keys)

    def size(self, day: date = DAY) -> int:
        note = self.witness.last(day)
        return notes.parse(note).size if note else 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "witness")


def leaves(count: int, kind: bytes = b"record") -> list[bytes]:
    return [merkle.leaf_hash(kind + str(number).encode()) for number in range(count)]


def root(size: int, kind: bytes = b"record") -> str:
    return merkle.Frontier().extend(leaves(size, kind)).root().hex()


def request(size: int, old: int = 0, day: date = DAY) -> CheckpointRequest:
    proof = merkle.consistency_proof(old, size, merkle.leaves_hash(leaves(size))) if old <= size else ()
    return CheckpointRequest(
        day=day, size=size, root=root(size), old_size=old, proof=tuple(node.hex() for node in proof)
    )


def test_signs_what_continues(world: World) -> None:
    for size in (1, 2, 2, 7, 64, 100):
        found = world.sign(size)
        assert (found.size, found.root, found.day, found.issuer) == (size, root(size), DAY, ISSUER)
    assert world.size() == 100


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request(9, 10), "smaller than 10"),
        (request(10, 10).replace(root=root(10, b"other")), "not consistent"),
        (request(12, 10).replace(root=root(12, b"other")), "not consistent"),
        (request(12, 10).replace(proof=()), "not consistent"),
        (request(12, 8), "10 was signed last"),
        (request(12), "10 was signed last"),
        (request(5, day=DAY - timedelta(days=1)), "closed, since"),
        (request(5, day=DAY + timedelta(days=2)), "lies ahead"),
        (request(5, 3, day=DAY + timedelta(days=1)), "nothing was signed"),
    ],
    ids=["smaller", "same size, other root", "larger, other root", "no proof", "proof from elsewhere",
         "as if it were the first", "day before", "day far ahead", "proof without a first"],
)  # fmt: skip
@pytest.mark.parametrize("restarted", [False, True])
def test_refuses(world: World, asked: CheckpointRequest, why: str, restarted: bool) -> None:
    world.sign(10)
    if restarted:
        world.restart()
    with pytest.raises(CheckpointRefusedError, match=why):
        world.witness.sign(asked)
    assert world.size() == 10
    assert world.sign(12).size == 12


def test_a_new_day_closes_the_one_before(world: World) -> None:
    world.sign(5)
    world.sign(1, DAY + timedelta(days=1))
    with pytest.raises(CheckpointRefusedError, match="closed"):
        world.sign(6)
    assert world.size() == 5


def test_time_never_goes_back(world: World) -> None:
    first = world.sign(1)
    world.clock.now -= 600
    again = world.sign(2)
    assert (first.time, again.time) == (int(NOW), int(NOW))
    world.clock.now += 900
    assert world.sign(2).time == int(NOW) + 300


def test_key_stays_and_files_are_private(world: World) -> None:
    note = world.witness.sign(request(3))
    world.clock.now += 86_400
    world.restart()
    assert notes.check(note, world.witness.keys).size == 3
    assert len(world.witness.keys.keys) == 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in world.directory.iterdir()} == {0o600}


def test_a_new_key_leaves_the_old_one_known_until_then(world: World) -> None:
    old = world.witness.sign(request(3))
    world.clock.now += 100
    (world.directory / KEY_FILE).unlink()
    world.restart()
    first, second = world.witness.keys.keys
    assert (first.created, first.retired, second.created, second.retired) == (NOW, NOW + 100, NOW + 100, None)
    assert notes.check(old, world.witness.keys).size == 3
    assert world.sign(4).size == 4
    world.restart()
    assert world.witness.keys.keys == (first, second)


def test_keeps_so_many_days(world: World) -> None:
    for number in range(KEPT_DAYS + 3):
        world.clock.now = NOW + number * 86_400
        world.sign(1, DAY + timedelta(days=number))
    assert world.witness.last(DAY + timedelta(days=2)) is None
    assert world.witness.last(DAY + timedelta(days=3)) is not None
    with pytest.raises(CheckpointRefusedError, match="closed"):
        world.sign(1, DAY)
