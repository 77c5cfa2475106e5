"""How long a step communicates, by axis of the plan: every now and then one step runs under torch's profiler.

Measures only. The time of a collective includes waiting for peers, and it may run beside computation. Where several of
an axis run at once the time counts once: a step does not communicate longer than it takes.
Which axis a collective belongs to is told by who asked for it: pipelining sends and receives, the DTensors of tensor
parallelism use functional collectives, what reduces or gathers for data parallelism (DDP, FSDP2) uses plain ones, and
our own, between ranks that share sequences or experts, run under an event that has the axis' name.
Collectives of a GPU are not seen: their time is no time of the CPU.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]  # is there, and not exported
from torch.autograd.profiler import profile

from kuangchao_worker.layers.execution.profiles import Watch, watch

SAMPLE_SECONDS: Final = 60.0
"""Between two sampled steps: each costs a millisecond and some microseconds for each operation, the first one fifty."""
FIRST_SECONDS: Final = 2.0
NANO: Final = 1e-9
BACKEND: Final = "gloo:"
NEIGHBOURS: Final = ("gloo:send", "gloo:recv")
FUNCTIONAL: Final = "_c10d_functional"
PLAIN: Final = "c10d"
OWN: Final = "kuangchao"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a profile: what, when it began, how long it took (nanoseconds)."""

    name: str
    start: int
    duration: int


class TrafficSampler:
    """Runs a step under the profiler every `SAMPLE_SECONDS`.

    A step of a task that profiles itself is passed over, and a sample ends without figures when a task begins to.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, others: Watch | None = None) -> None:
        self._clock, self._next = clock, clock() + FIRST_SECONDS
        self._others = others or watch()
        self._others.give_way = self._stop
        self._running: profile | None = None
        self.seconds: Mapping[str, float] = {}

    def begin(self) -> None:
        """A step begins; it is sampled if it is time."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + SAMPLE_SECONDS
        # there is one profiler in a process, and a second start would end the profile that somebody else makes
        if not (self._others.theirs or _profiler_enabled()):
            self._running = profile(use_cpu=True)
            with self._others.ours():
                self._running.__enter__()  # type: ignore[no-untyped-call]  # torch has no annotation here

    def end(self) -> None:
        """The gradients of the step are there."""
        stopped = self._stop()
        results = stopped.kineto_results if stopped is not None else None
        if results is not None:
            self.seconds = by_axis(Event(e.name(), e.start_ns(), e.duration_ns()) for e in results.events())

    def _stop(self) -> profile | None:
        """What was sampled, which ends here; None where nothing was."""
        running, self._running = self._running, None
        if running is not None:
            with self._others.ours():
                running.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch has no annotation here
        return running


def by_axis(events: Iterable[Event]) -> dict[str, float]:
    """Seconds in which collectives ran, by axis.

    The backend's events do not say who asked for them, but they begin in the order in which they were asked for.
    """
    ordered = sorted(events, key=lambda event: event.start)
    asked = deque(_asked(ordered))
    spent: Counter[str] = Counter()
    until: Counter[str] = Counter()
    for event in ordered:
        if event.name in NEIGHBOURS:
            axis = "pipeline"
        elif event.name.startswith(BACKEND):
            axis = asked.popleft() if asked else "data"
        else:
            continue
        end = event.start + event.duration
        spent[axis] += max(0, end - max(event.start, until[axis]))
        until[axis] = max(until[axis], end)
    return {axis: total * NANO for axis, total in sorted(spent.items())}


def _asked(ordered: Iterable[Event]) -> Iterator[str]:
    """The axis of each collective that was asked for. One that calls a plain one is no second one."""
    until = 0
    for event in ordered:
        space, _, operation = event.name.partition("::")
        if space == OWN or (space == FUNCTIONAL and operation != "wait_tensor"):
            until = event.start + event.duration
            yield operation if space == OWN else "tensor"
        elif space == PLAIN and operation not in ("send", "recv_") and event.start >= until:
            yield "data"
