"""How much room the audit volume has: thresholds, and a ballast that is held and given up."""

from pathlib import Path

import pytest

from kuangchao_operator.audit.disk import BALLAST, DiskGuard, Limits, Room, Space, measure, room

MB = 1_000_000
TOTAL = 1_000 * MB


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (1_000, Room.ALL),
        (100, Room.ALL),
        (99.9, Room.NO_READS),
        (50, Room.NO_READS),
        (49.9, Room.NO_WRITES),
        (0, Room.NO_WRITES),
    ],
)
def test_thresholds(free: float, expected: Room) -> None:
    assert room(Space(int(free * MB), TOTAL), Limits()) is expected


def test_thresholds_can_be_set_and_an_unknown_volume_is_full() -> None:
    assert room(Space(40 * MB, TOTAL), Limits(reads=3.0, writes=1.0)) is Room.ALL
    assert room(Space(0, 0), Limits()) is Room.NO_WRITES


def test_a_real_volume_is_measured(tmp_path: Path) -> None:
    space = measure(tmp_path)
    assert 0 < space.free <= space.total


class Volume:
    """A disk of 1 GB; what the ballast takes is no longer free."""

    def __init__(self, directory: Path, free: int) -> None:
        self.directory, self.others = directory, TOTAL - free
        self.broken = False

    def __call__(self, _: Path) -> Space:
        if self.broken:
            raise OSError(5, "Input/output error")
        return Space(TOTAL - self.others - self.ballast, TOTAL)

    @property
    def ballast(self) -> int:
        path = self.directory / BALLAST
        return path.stat().st_size if path.exists() else 0


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path, 500 * MB)


def guard(volume: Volume, ballast: int = 20 * MB) -> DiskGuard:
    return DiskGuard(volume.directory, None, volume, ballast)


def test_the_ballast_is_given_up_when_the_volume_is_full_and_held_again_when_it_is_not(volume: Volume) -> None:
    watched = guard(volume)
    assert (watched.look(), volume.ballast) == (Room.ALL, 20 * MB)
    volume.others = 940 * MB
    assert (watched.look(), volume.ballast) == (Room.NO_WRITES, 0)
    assert volume(volume.directory).percent == 6  # and still it is full: these 2 % are the reserve
    assert watched.look() is Room.NO_WRITES
    volume.others = 890 * MB
    assert (watched.look(), volume.ballast) == (Room.NO_READS, 0)
    volume.others = 500 * MB
    assert (watched.look(), volume.ballast) == (Room.ALL, 20 * MB)


def test_the_ballast_alone_never_makes_a_volume_full(volume: Volume) -> None:
    volume.others = 890 * MB
    assert [guard(volume).look() for _ in range(2)] == [Room.ALL, Room.ALL]
    assert volume.ballast == 0


def test_the_ballast_is_a_small_part_of_a_small_volume(volume: Volume) -> None:
    guard(volume, ballast=64 * 1024 * 1024).look()
    assert volume.ballast == TOTAL // 32


def test_a_volume_that_cannot_be_measured_counts_as_before(volume: Volume) -> None:
    watched = guard(volume)
    volume.others = 920 * MB
    assert watched.look() is Room.NO_READS
    volume.broken = True
    assert watched.look() is Room.NO_READS


def test_a_ballast_that_cannot_be_made_is_no_error(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    assert guard(volume).look() is Room.ALL
    assert not (volume.directory / BALLAST).exists()
