"""How full the audit volume is, and what follows from it: first no reads are recorded, then nothing new is begun.

A ballast file is held while there is room and given up when there is none, so that the end of the room can be recorded.
Measuring may hang with the disk: only the thread that writes records may call `look`.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

BALLAST_BYTES: Final = 64 * 1024 * 1024
BALLAST_SHARE: Final = 32
"""The ballast takes at most this part of a small volume."""
BALLAST: Final = "ballast"


class Room(IntEnum):
    """What the free space allows."""

    ALL = 0
    NO_READS = 1
    NO_WRITES = 2


class Space(NamedTuple):
    """Bytes of a file system."""

    free: int
    total: int

    @property
    def percent(self) -> float:
        """Free space in percent."""
        return 100 * self.free / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Percent of free space below which something is given up."""

    reads: float = 10.0
    writes: float = 5.0


def room(space: Space, limits: Limits) -> Room:
    """What may still be recorded."""
    if space.percent < limits.writes:
        return Room.NO_WRITES
    return Room.NO_READS if space.percent < limits.reads else Room.ALL


def measure(directory: Path) -> Space:
    """Space of the file system, as far as this process may use it."""
    found = os.statvfs(directory)
    # blocks that are kept for root, or for others by a quota, are neither free nor part of the whole: as `df` counts
    total = found.f_blocks - found.f_bfree + found.f_bavail
    return Space(found.f_bavail * found.f_frsize, total * found.f_frsize)


class DiskGuard:
    """Watches one volume. The last answer stands while the volume cannot be measured: its writes will fail and tell."""

    def __init__(
        self,
        directory: Path,
        limits: Limits | None = None,
        measure: Callable[[Path], Space] = measure,
        ballast: int = BALLAST_BYTES,
    ) -> None:
        self._directory, self._limits, self._measure, self._wanted = directory, limits or Limits(), measure, ballast
        self._given_up = False
        self.room, self.space = Room.ALL, Space(0, 0)

    def look(self) -> Room:
        """Measure, and hold or give up the ballast."""
        try:
            space = self._measure(self._directory)
        except OSError:
            return self.room
        ballast = min(self._wanted, space.total // BALLAST_SHARE)
        held = _held(self._file)
        # what giving it up has freed is not room: else the volume would count as free again at once
        self.space = Space(max(space.free - ballast, 0), space.total) if self._given_up and not held else space
        self.room = room(self.space, self._limits)
        if self.room is Room.NO_WRITES and held:
            self._give_up()
        elif self.room is Room.ALL and not held:
            self._take(space, ballast)
        return self.room

    @property
    def _file(self) -> Path:
        return self._directory / BALLAST

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):  # a volume that cannot even do this has nothing to be recorded on
            self._file.unlink()
            self._given_up = True

    def _take(self, space: Space, ballast: int) -> None:
        """Hold it again, unless that alone would make the volume count as full."""
        if not ballast or room(Space(space.free - ballast, space.total), self._limits) is not Room.ALL:
            return
        try:
            _reserve(self._file, ballast)
            self._given_up = False
        except OSError:
            with contextlib.suppress(OSError):
                self._file.unlink()


def _held(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _reserve(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
