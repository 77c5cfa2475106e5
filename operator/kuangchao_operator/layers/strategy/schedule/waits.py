"""Who waits for whom: events, and for each those that must come before it. Pure.

Kahn's algorithm (Kahn 1962) puts the events in an order in which all can happen. What it leaves over waits for itself;
the error names a shortest cycle of it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from kuangchao_contracts.errors import PlanInfeasibleError

SHOWN = 8
"""Lines of a cycle that a message shows."""


class DeadlockError(PlanInfeasibleError):
    """Participants that wait for each other, or for what never comes. `cycle`: a sentence for each wait, in order."""

    code = "Deadlock"

    def __init__(self, cycle: Iterable[str]) -> None:
        self.cycle = tuple(cycle)
        more = f"; and {len(self.cycle) - SHOWN} more" if len(self.cycle) > SHOWN else ""
        super().__init__(f"deadlock: {'; '.join(self.cycle[:SHOWN])}{more}")


class Waits:
    """A graph of events by number. Each edge belongs to the participant whose program makes it."""

    def __init__(self, count: int) -> None:
        self.after: list[list[int]] = [[] for _ in range(count)]
        self._whose: list[list[int]] = [[] for _ in range(count)]
        self._before = [0] * count

    def edge(self, first: int, then: int, participant: int) -> None:
        """`participant` does `then` only when `first` is over."""
        self.after[first].append(then)
        self._whose[first].append(participant)
        self._before[then] += 1

    def program(self, participant: int, steps: Sequence[Sequence[int]]) -> None:
        """A participant's events in order; those of one step are started together, and it waits for all of them."""
        for before, step in pairwise(steps):
            for first in before:
                for then in step:
                    self.edge(first, then, participant)

    def order(self, does: Callable[[int, int], str]) -> list[int]:
        """All events, each after those that it waits for; equal graphs give equal orders.

        `does(event, participant)` says what an event is for a participant ("stage 0 sends ..."). Raises DeadlockError.
        """
        missing = list(self._before)
        ready = deque(event for event, count in enumerate(missing) if count == 0)
        order: list[int] = []
        while ready:
            event = ready.popleft()
            order.append(event)
            for then in self.after[event]:
                missing[then] -= 1
                if missing[then] == 0:
                    ready.append(then)
        if len(order) < len(missing):
            raise DeadlockError(self._words(self._cycle(missing), does))
        return order

    def _cycle(self, missing: list[int]) -> list[tuple[int, int]]:
        """A shortest cycle, as events each with the participant that makes the next one wait for it."""
        left = {event for event, count in enumerate(missing) if count}
        start = self._on_cycle(left)
        came: dict[int, tuple[int, int]] = {}
        queue = deque([start])
        while start not in came:
            event = queue.popleft()
            for then, participant in zip(self.after[event], self._whose[event], strict=True):
                if then in left and then not in came:
                    came[then] = (event, participant)
                    queue.append(then)
        cycle = [came[start]]
        while cycle[-1][0] != start:
            cycle.append(came[cycle[-1][0]])
        return cycle[::-1]

    def _on_cycle(self, left: set[int]) -> int:
        """An event on a cycle: every event that is left waits for another one that is left."""
        waits_for: dict[int, int] = {}
        for event in sorted(left):
            for then in self.after[event]:
                waits_for.setdefault(then, event)
        seen: set[int] = set()
        event = min(left)
        while event not in seen:
            seen.add(event)
            event = waits_for[event]
        return event

    @staticmethod
    def _words(cycle: list[tuple[int, int]], does: Callable[[int, int], str]) -> list[str]:
        """What each participant would have to do before what, lowest first; its steps in between are left out."""
        turns = [n for n in range(len(cycle)) if cycle[n][1] != cycle[n - 1][1]] or list(range(len(cycle)))
        start = min(range(len(turns)), key=lambda n: (cycle[turns[n]][1], n))
        turns = turns[start:] + turns[:start]
        lines = []
        for turn, following in zip(turns, [*turns[1:], turns[0]], strict=True):
            first, participant = cycle[turn]
            then = cycle[following][0]
            lines.append(f"{does(first, participant)} before it {_verb(does(then, participant))}")
        return lines


def _verb(sentence: str) -> str:
    """What a participant does, without its name: names are two words ("stage 0", "rank 5")."""
    return sentence.split(" ", 2)[2]
