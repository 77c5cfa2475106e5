"""A copy of every stored record as a line of JSON, for a cluster's log collectors. Never keeps the writer waiting.

It follows the store by its sequence numbers on a thread of its own, so a collector that hangs costs lines of the copy
and nothing else: the record itself is in the store. A gap in the numbers shows that lines were dropped.
"""

import contextlib
import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kuangchao_operator.audit import schema

log = logging.getLogger(__name__)
DEADLINE_SECONDS: Final = 0.1
GATHER_SECONDS: Final = 0.05
CHUNK: Final = select.PIPE_BUF
"""A pipe that is ready takes so much without blocking."""
CLOSE_SECONDS: Final = 2.0


class RecordStream:
    """Writes to one descriptor, which stays its owner's."""

    def __init__(self, directory: Path, descriptor: int, deadline: float = DEADLINE_SECONDS) -> None:
        self._directory, self._descriptor, self._deadline = directory, descriptor, deadline
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._after, self._torn = 0, False
        self._thread = threading.Thread(target=self._follow, name="audit-stream", daemon=True)
        self.dropped = 0
        """Records that were stored and not copied."""

    def start(self, after: int) -> None:
        """Copy what is stored after a sequence number."""
        self._after = after
        self._thread.start()

    def stored(self) -> None:
        """There is something new. Returns at once."""
        self._wake.set()

    def close(self) -> None:
        """Copy what is stored by now, if the other end takes it, and end."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        while True:
            self._wake.wait()
            last = self._closing.is_set()
            self._wake.clear()
            self._copy()
            if last:
                return
            self._closing.wait(GATHER_SECONDS)

    def _copy(self) -> None:
        try:
            for seq, body in self._new():
                if not self._write(body + b"\n"):
                    self._skip(seq)
                    return
                self._after = seq
        except (sqlite3.Error, OSError) as error:
            log.warning("audit stream: %s", type(error).__name__)

    def _skip(self, seq: int) -> None:
        """Give up everything from this one to the newest: the next attempt is a deadline later for each line."""
        with contextlib.closing(schema.open_reader(schema.files(self._directory)[-1])) as reader:
            (newest,) = reader.execute("SELECT max(seq) FROM records").fetchone()
        newest = max(newest or 0, seq)
        self.dropped += newest - seq + 1
        self._after = newest

    def _new(self) -> Iterator[tuple[int, bytes]]:
        # a day's last records may come together with the next day's first
        for path in schema.files(self._directory)[-2:]:
            with contextlib.closing(schema.open_reader(path)) as reader:
                yield from reader.execute("SELECT seq, body FROM records WHERE seq > ? ORDER BY seq", (self._after,))

    def _write(self, line: bytes) -> bool:
        """Write a line before the deadline, or not; what was begun and not ended is ended by the next line."""
        ends = time.monotonic() + self._deadline
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:
            if not self._poll.poll(max(ends - time.monotonic(), 0) * 1_000):
                self._torn = self._torn or len(rest) < len(line)
                return False
            try:
                rest = rest[os.write(self._descriptor, rest[:CHUNK]) :]
            except OSError:  # nobody reads any more
                return False
        self._torn = False
        return True
