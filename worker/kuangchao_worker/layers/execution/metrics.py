"""The loss curve: one line per step in `metrics.jsonl`, keyed by (step, attempt), the loss in hex to compare bits.

A replayed step adds a line with a higher attempt; the newest attempt wins. Writing must never stop training.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

FLUSH_SECONDS: Final = 1.0
log = logging.getLogger("kuangchao.metrics")


class LossLog:
    """Appends to the log of a job. Lines reach the file whole, at `flush` or about once a second."""

    def __init__(self, path: Path | None, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._attempt, self._clock = path, attempt, clock
        self._lines: list[str] = []
        self._flushed = clock()
        self._problem = ""
        if path is not None and not _ends_with_newline(path):
            # the writer before us was killed within a line: close it so that ours stays readable
            self._lines.append("\n")

    def add(self, step: int, loss: float) -> None:
        """Note the mean loss of a step."""
        entry = {"step": step, "attempt": self._attempt, "loss": loss.hex(), "lossValue": loss}
        self._lines.append(json.dumps(entry) + "\n")
        if self._clock() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the file system in one write."""
        self._flushed = self._clock()
        lines, self._lines = self._lines, []
        if self._path is None or not lines:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, "".join(lines).encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            self._warn(f"{self._path.name}: {error.strerror}")

    def _warn(self, problem: str) -> None:
        """Say once why the curve has a gap: a full volume would else be told of with every flush."""
        if problem != self._problem:
            self._problem = problem
            log.warning("the loss curve is not written: %s", problem)


def _ends_with_newline(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True
