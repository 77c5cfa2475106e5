"""`from kuangchao_worker import report`: any script that a job runs with `command` says how far it is and how it does.
Code of a task says metrics alone: its rank puts itself behind this (`heard_by`) while it trains.

Standard library only, so that a script pays nothing for the import. It never waits for the agent while training runs,
never fails because the agent is slow or gone, and does nothing at all where there is no agent. Only wrong arguments
raise, and they do so everywhere, so that a first try at a desk finds them.
"""

import atexit
import json
import logging
import operator
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, SupportsFloat, SupportsIndex, TypeVar

from kuangchao_contracts.errors import InvalidInputError

SOCKET_VARIABLE: Final = "KUANGCHAO_MONITOR"
CHECKPOINT_VARIABLE: Final = "KUANGCHAO_CHECKPOINT_DIR"
REPORT_SECONDS: Final = 0.1
"""Between two messages; what is said in between travels with the next one, or at the end of the process."""
EXIT_SECONDS: Final = 1.0
"""How long the end of the process may wait for an agent that does not read."""
CONTENTION_SECONDS: Final = 0.05
"""How long one thread waits for another; after a fork in the wrong moment nobody would ever let it go on."""
MAX_NAMES: Final = 24
"""Names of metrics in one process: a heartbeat holds 32, and the agent has some of its own."""
MAX_NUMBER: Final = 2**53
"""The largest number that the status of a job can hold."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,47}")
SECTION: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
RESERVED: Final = frozenset({"step", "total"})
Listener = Callable[[Mapping[str, Any]], None]
"""Takes metrics by name: numbers, and tensors of one element as they came."""
Value = TypeVar("Value")
log = logging.getLogger("kuangchao.report")


class Report:
    """What a script says of itself. What rank 0 says is shown to people."""

    def __init__(self, environment: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._environment, self._clock = environment, clock
        self._sender: Sender | None = None
        self._listener: Listener | None = None

    def progress(self, step: SupportsIndex, total: SupportsIndex | None = None, **metrics: SupportsFloat) -> None:
        """`step` steps are done, of `total` in the whole run; metrics are numbers by name.

        A job that has reported a step is watched for hangs: `fault.hangSeconds` without a higher one, or
        `fault.firstStepSeconds` before the first step of an attempt and after the last of `total`. Raises
        InvalidInputError for a number or a name that cannot be reported.
        """
        said: dict[str, int] = {"step": _whole("step", step, 0)}
        if total is not None:
            said["total"] = _whole("total", total, 1)
        self._say(said, _numbers(metrics), TRAIN)

    def section(self, name: str) -> None:
        """What follows is no training step but `name`: an evaluation, a checkpoint, an export.

        Until the next `progress` the job is watched with the patience of `fault.firstStepSeconds` instead of
        `hangSeconds`. Said at once. Raises InvalidInputError for what cannot be a name.
        """
        if not _section(name):
            raise InvalidInputError(
                "section", name, "a section is named by a letter and up to 31 of A-Za-z0-9_.-", EVALUATE
            )
        self._say({}, {}, name)

    def metrics(self, **metrics: SupportsFloat) -> None:
        """Metrics between steps; they show once a step has been reported. Raises InvalidInputError as `progress`.

        In a task: of the step that is being made, the mean where it is said several times.
        """
        found = _numbers(metrics)
        if self._listener is not None:
            self._listener(found)
        else:
            self._say({}, found)

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Around the training of a task: who takes its metrics, instead of an agent."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def checkpoint_directory(self) -> Path | None:
        """Where this job may keep files of its own, the same for all its ranks; None outside Kuangchao.

        It outlives the job's pods if the job has `checkpoint.storage`; otherwise it is scratch space of one pod.
        """
        directory = self._environment.get(CHECKPOINT_VARIABLE)
        return Path(directory) if directory else None

    def __call__(self, *, step: SupportsIndex, total: SupportsIndex | None = None, **metrics: SupportsFloat) -> None:
        """As `progress`: the form of the first release."""
        self.progress(step, total, **metrics)

    def _say(self, said: Mapping[str, int], metrics: Mapping[str, Any], section: str | None = None) -> None:
        path, rank = self._environment.get(SOCKET_VARIABLE), self._environment.get("RANK", "0")
        if not path or not rank.isdecimal():
            return
        # a forked process (a DataLoader's worker, say) speaks for itself: what its parent noted is the parent's to say
        speaker = (path, int(rank), os.getpid())
        if self._sender is None or self._sender.speaker != speaker:
            self._sender = Sender(speaker, self._clock)
            atexit.register(self._sender.close)
        self._sender.say(said, {name: decimal(number(name, value)) for name, value in metrics.items()}, section)


class Names:
    """The names that a process has reported: a loop that invents names must not grow for ever."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._warned = False

    def known(self, metrics: Mapping[str, Value]) -> dict[str, Value]:
        """Without names beyond those that a job may have."""
        fresh = [name for name in metrics if name not in self._names][: MAX_NAMES - len(self._names)]
        self._names.update(fresh)
        known = {name: value for name, value in metrics.items() if name in self._names}
        if len(known) < len(metrics) and not self._warned:
            self._warned = True
            left = set(metrics) - set(known)
            log.warning("more than %d names of metrics: %s and others are left out", MAX_NAMES, left)
        return known


class Sender:
    """The end of the channel that belongs to one process of a rank: keeps what is not said yet, and says it seldom."""

    def __init__(self, speaker: tuple[str, int, int], clock: Callable[[], float]) -> None:
        self.speaker = speaker
        self._clock, self._lock = clock, threading.Lock()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._numbers: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._names = Names()
        self._section: str | None = None
        """None: this process has named none, so the one that the rank is in stays."""
        self._last, self._unsaid, self._ended = -REPORT_SECONDS, False, False

    def say(self, numbers: Mapping[str, int], texts: Mapping[str, str], section: str | None = None) -> None:
        """Note it, and send what is noted if it is time, if this is the last step, or if another section begins."""
        if not self._lock.acquire(timeout=CONTENTION_SECONDS):
            return
        try:
            self._numbers |= numbers
            self._texts |= self._names.known(texts)
            self._unsaid = True
            entered = section is not None and section != self._section
            self._section = section or self._section
            at_end = 0 < self._numbers.get("total", 0) <= self._numbers.get("step", 0)
            if entered or (at_end and not self._ended) or self._clock() - self._last >= REPORT_SECONDS:
                self._last, self._ended = self._clock(), at_end
                self._send(0.0)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Say what is left, in bounded time, and nothing more."""
        self._send(EXIT_SECONDS)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, patience: float) -> None:
        """Say what is not said yet. A step that was sent stays noted, for the metrics that follow it."""
        if self._socket is None or not self._unsaid:
            return
        path, rank, _ = self.speaker
        message = {"rank": rank, "section": self._section, **self._numbers, "metrics": self._texts}
        self._socket.settimeout(patience)
        try:
            self._socket.sendto(json.dumps(message).encode(), path)
        except OSError:
            # the agent is gone or has not read for a while: what is noted goes with the next message
            return
        self._texts, self._unsaid = {}, False


def _section(name: str) -> bool:
    try:
        return SECTION.fullmatch(name) is not None
    except TypeError:
        return False


def _whole(field: str, value: SupportsIndex, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInputError(field, value, "is no whole number", _nearest(value, least)) from None
    if not least <= number <= MAX_NUMBER:
        raise InvalidInputError(field, number, "cannot be shown", min(max(number, least), MAX_NUMBER))
    return number


def _nearest(value: object, least: int) -> int:
    try:
        return min(max(round(float(value)), least), MAX_NUMBER)  # type: ignore[arg-type]  # what is none raises
    except (TypeError, ValueError, OverflowError):
        return least


def _numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, Any]:
    return {_name(name): _number(name, value) for name, value in metrics.items()}


def _name(name: str) -> str:
    if name in RESERVED or NAME.fullmatch(name) is None:
        raise InvalidInputError("metrics", name, "a metric is named by a letter and up to 47 of A-Za-z0-9_./-", "loss")
    return name


def _number(name: str, value: Any) -> Any:
    """A number; a tensor of one element stays as it is, since to read it may mean to wait for a device."""
    if not callable(getattr(value, "numel", None)):
        return number(name, value)
    if value.numel() != 1:
        why = f"is a tensor of {value.numel()} elements, not of one"
        raise InvalidInputError(f"metrics.{name}", tuple(value.shape), why, "its mean()")
    return value


def number(name: str, value: Any) -> float:
    """The value of a metric. Raises InvalidInputError for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InvalidInputError(f"metrics.{name}", value, "is no number", 0) from None


def decimal(value: float) -> str:
    """As people and status read it."""
    return f"{value:.10g}"


report: Final = Report(os.environ)
