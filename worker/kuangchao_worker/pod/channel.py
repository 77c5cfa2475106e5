"""The channel from a rank to the agent of its pod: one JSON datagram per message on a unix socket.

Progress may be dropped when the agent is slow, because the next message says more; everything that matters once
(errors, saved shards, final metrics) is sent with `reliable`. A rank never waits for the agent without a limit.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract, Text
from kuangchao_contracts.run import MemoryBytes, RankNote
from kuangchao_worker.reports import MAX_NUMBER, REPORT_SECONDS

MAX_MESSAGE: Final = 16_384
RELIABLE_SECONDS: Final = 150.0
"""For longer than any agent may be silent and not be lost: one that waits for a processor hears every such word."""
NOTE_SECONDS: Final = 5.0
"""The same for what is said once more later, between two steps."""
FULL_SECONDS: Final = 0.05
"""Between two tries while the agent's queue is full."""
NOTES_PER_MESSAGE: Final = 8
"""So that a message of notes with the longest texts still fits."""


class RankMessage(Contract):
    """What a rank says. Fields that are None say nothing new."""

    rank: Annotated[int, Field(ge=0)]
    step: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    total: Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None = None
    """Steps of the whole run, from scripts that say so."""
    section: Annotated[str, Field(max_length=32)] | None = None
    metrics: dict[str, Annotated[str, Field(max_length=64)]] = {}
    error: Text | None = None
    error_kind: Annotated[str, Field(max_length=64)] | None = None
    peak_memory_bytes: MemoryBytes | None = None
    memory_limit_bytes: MemoryBytes | None = None
    saved: Annotated[str, Field(max_length=1024)] | None = None
    """Directory in which this rank has finished its part of a checkpoint."""
    save_failed: Annotated[str, Field(max_length=1024)] | None = None
    """Directory of a checkpoint that this rank could not write; `error` says why and training goes on."""
    oplog_count: Annotated[int, Field(ge=0)] | None = None
    oplog_head: Annotated[str, Field(max_length=64)] | None = None
    notes: Annotated[tuple[RankNote, ...], Field(max_length=NOTES_PER_MESSAGE)] = ()
    """What this rank's gate refused, or let pass in the grace period."""
    lease_overdue: bool | None = None
    """Whether the rank acts on a lease that has expired, because nobody renewed it."""
    lease_overdue_seconds: Annotated[int, Field(ge=0)] | None = None
    """How long it has done so in this attempt."""


class RankChannel:
    """The rank's end."""

    def __init__(self, path: str, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._rank, self._clock = path, rank, clock
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._last = (-1.0, "")
        self.step: int | None = None
        """The newest step that it was told of, sent or not: what a failure happened after."""

    def progress(self, step: int, section: str, metrics: Mapping[str, str] | None = None) -> None:
        """Say where the rank is; at most one message in `REPORT_SECONDS` unless the section has changed."""
        self.step, now = step, self._clock()
        if self._socket is None or (section == self._last[1] and now - self._last[0] < REPORT_SECONDS):
            return
        self._last = (now, section)
        self._send({"rank": self._rank, "step": step, "section": section, "metrics": dict(metrics or {})}, 0.0)

    def reliable(self, message: RankMessage, patience: float = RELIABLE_SECONDS) -> bool:
        """Send a message that must arrive; False at once when the agent is gone, after `patience` when it is stuck."""
        return self._send(message.wire(), patience)

    def close(self) -> None:
        """Say nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: Mapping[str, object], patience: float) -> bool:
        # threads that save send beside the one that trains
        opened = self._socket
        if opened is None:
            return False
        raw, deadline = json.dumps(message).encode(), time.monotonic() + patience
        while True:
            try:
                opened.sendto(raw, self._path)
            except BlockingIOError:
                # its queue is full; one that is not connected cannot wait for room: a timeout of its own would spin
                if time.monotonic() >= deadline:
                    return False
                time.sleep(FULL_SECONDS)
            except OSError:
                return False  # the agent is gone: a rank must not fail because nobody listens
            else:
                return True
