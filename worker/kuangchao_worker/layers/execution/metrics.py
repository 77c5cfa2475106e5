"""The loss curve: one line per step in `metrics.jsonl`, keyed by (step, attempt), the loss in hex to compare bits, and
what code of the task reported.

A replayed step adds a line with a higher attempt; the newest attempt wins. Writing must never stop training.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kuangchao_worker.layers.execution.reported import Means, read

FLUSH_SECONDS: Final = 1.0
log = logging.getLogger("kuangchao.metrics")


class LossLog:
    """Appends to the log of a job. Lines reach the file whole, at `flush` or about once a second."""

    def __init__(self, path: Path | None, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._attempt, self._clock = path, attempt, clock
        self._entries: list[tuple[dict[str, Any], Means]] = []
        self._torn = path is not None and not _ends_with_newline(path)
        self._flushed = clock()
        self._problem = ""

    def add(self, step: int, loss: float, reported: Mapping[str, Any] = {}) -> None:
        """Note the mean loss of a step, and what was reported of it, which is read when lines are written."""
        entry = {"step": step, "attempt": self._attempt, "loss": loss.hex(), "lossValue": _json(loss)}
        self._entries.append((entry, reported))
        if self._clock() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the file system in one write."""
        self._flushed = self._clock()
        entries, self._entries = self._entries, []
        if self._path is None or not entries:
            return
        lines = [json.dumps(entry | _reported(means)) + "\n" for entry, means in entries]
        if self._torn:
            # the writer before us was killed within a line, or the volume is full: close it so that ours stays readable
            lines.insert(0, "\n")
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._write(descriptor, "".join(lines).encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            self._warn(f"{self._path.name}: {error.strerror}")

    def _write(self, descriptor: int, rest: bytes) -> None:
        """All of it: what has little room left takes a part, and says with the next one that it is full."""
        while rest:
            written = os.write(descriptor, rest)
            self._torn = rest[written - 1 : written] != b"\n"
            rest = rest[written:]

    def _warn(self, problem: str) -> None:
        """Say once why the curve has a gap: a full volume would else be told of with every flush."""
        if problem != self._problem:
            self._problem = problem
            log.warning("the loss curve is not written: %s", problem)


def _reported(means: Means) -> dict[str, Any]:
    if not means:
        return {}
    return {"metrics": {name: _json(value) for name, value in read(means).items()}}


def _json(value: float) -> float | None:
    # JSON has no word for what is no number
    return value if math.isfinite(value) else None


def _ends_with_newline(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True
