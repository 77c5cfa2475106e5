"""Where the operation log of a rank lies on a volume: names of its parts, and the writer that fills them.

`oplog/att-<attempt>.rank-<rank>.jsonl`, and `...jsonl.1`, `.2` where a run is long; the chain runs on over the parts.
One process writes one log: each attempt is another process and another file. Writing must never stop training: a log
that cannot be written is closed, says so, and its head and count go on without it.
"""

import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kuangchao_contracts.durable import sync_path

DIRECTORY: Final = "oplog"
BUFFER_BYTES: Final = 64 * 1024
LINES_PER_PART: Final = 500_000
"""Some 150 MB: a part can still be looked at by people."""
_NAME: Final = re.compile(r"att-(\d{1,10})\.rank-(\d{1,7})\.jsonl(?:\.(\d{1,7}))?")
log = logging.getLogger(__name__)


def part_name(attempt: int, rank: int, part: int = 0) -> str:
    """File name of a part."""
    return f"att-{attempt}.rank-{rank}.jsonl" + (f".{part}" if part else "")


def manifest_name(attempt: int) -> str:
    """File that keeps the manifest of the last checkpoint of an attempt that was pruned."""
    return f"att-{attempt}.manifest.json"


def parse_name(name: str) -> tuple[int, int, int] | None:
    """(attempt, rank, part) of a file name; None for any other file."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def parts(directory: Path, attempt: int, rank: int) -> list[Path]:
    """The parts of a log in order, up to the first that is missing."""
    found: list[Path] = []
    while (path := directory / part_name(attempt, rank, len(found))).is_file():
        found.append(path)
    return found


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a log held when a checkpoint was taken, and how to make it durable from another thread."""

    count: int
    head: str
    files: Sequence[Path] = ()
    """Parts that have grown since the last pin; () when the log has no file."""

    @property
    def kept(self) -> bool:
        """Whether the lines are in a file."""
        return bool(self.files)

    def sync(self) -> None:
        """Make the pinned lines durable. Blocks for the disk; raises OSError."""
        for path in (*self.files, *({self.files[0].parent} if self.files else ())):
            sync_path(path)

    def __str__(self) -> str:
        return f"{self.count}:{self.head}"


class LogFile:
    """Appends lines to the parts of one log. Used from one thread; only `Pinned.sync` runs elsewhere."""

    def __init__(self, directory: Path, attempt: int, rank: int, lines_per_part: int = LINES_PER_PART) -> None:
        self._directory, self._attempt, self._rank = directory, attempt, rank
        self._lines_per_part = lines_per_part
        self._pending = bytearray()
        self._part = self._lines = 0
        self._grown: list[Path] = []
        self._descriptor: int | None = None
        self._descriptor = self._create()

    @property
    def is_open(self) -> bool:
        """Whether lines still reach the file."""
        return self._descriptor is not None

    def append(self, line: bytes) -> None:
        """Take a line; most calls touch memory only."""
        if self._descriptor is None:
            return
        self._pending += line
        self._pending += b"\n"
        self._lines += 1
        if len(self._pending) >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the file system."""
        try:
            while self._pending and self._descriptor is not None:
                written = os.write(self._descriptor, self._pending)
                del self._pending[:written]
            if self._lines >= self._lines_per_part:
                self._next_part()
        except OSError as error:
            self._give_up(error)

    def pin(self) -> Sequence[Path]:
        """Parts that have grown since the last call, all lines handed over; () when the file was given up."""
        self.flush()
        if self._descriptor is None:
            return ()
        grown, self._grown = tuple(self._grown), self._grown[-1:]
        return grown

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _create(self) -> int | None:
        path = self._directory / part_name(self._attempt, self._rank, self._part)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if path.exists():
                # nobody but this process may have written it: kept for people to look at, never continued
                path.rename(path.with_name(f"{path.name}.found-{time.time_ns()}"))
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._give_up(error)
            return None
        self._grown.append(path)
        return descriptor

    def _next_part(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._part, self._lines = self._part + 1, 0
            self._descriptor = self._create()

    def _give_up(self, error: OSError) -> None:
        log.warning("operation log of rank %d keeps head and count only: %s", self._rank, error.strerror or error)
        self._pending.clear()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
