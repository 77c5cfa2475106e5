"""The search itself: best first. Pure.

Every sketch that can fit has a bound that nothing made of it can beat. The sketch with the best bound is looked at more
closely, which gives it a worse but truer bound, and takes its place among the others; when one that is fully worked out
comes first, it is the best of all that are left. So most of the space is never worked out.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Final, NamedTuple

from kuangchao_contracts.parallel import Objective, Schedule
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.search.climb import Bound, Climb
from kuangchao_operator.layers.strategy.search.layouts import Sketch, layouts, sketches
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.rank import Clock, Scored, by_rule, key
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.search.variants import lightest, mildest, pipelines, savings

SLACK_PERCENT: Final = 10
"""Taken off a first bound: it is that of the even cut in the simplest order, and another cut may do better."""
LEAN: Final = (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_V, Schedule.GPIPE)
"""Schedules worth a look for memory: the others hold at least what 1F1B holds."""


class Closest(NamedTuple):
    """The setting that needs least of all, and what it needs."""

    need: int
    setting: Setting


class _Depth(IntEnum):
    """How closely a sketch was looked at."""

    GUESSED = 0
    TIMED = 1
    DONE = 2


class Search:
    """One search over one space."""

    def __init__(self, space: Space, memory: Memory, clock: Clock, objective: Objective) -> None:
        self.space, self.memory, self.objective = space, memory, objective
        self._clock = clock
        self._orders: dict[Sketch, list[tuple[Bound, Setting]]] = {}
        self._worked: dict[Sketch, Scored | None] = {}
        self.closest: Closest | None = None

    @cached_property
    def _prospects(self) -> tuple[tuple[Bound, Sketch], ...]:
        return tuple(self._look())

    def feasible(self) -> bool:
        """Whether anything fits; afterwards `closest` is known where nothing does."""
        return next(self._look(), None) is not None

    def ranked(self, wanted: Callable[[Sketch], bool] = lambda _: True) -> Iterator[Scored]:
        """The best of each wanted sketch, best first; nothing where nothing fits."""
        heap = [(bound, n, _Depth.GUESSED) for n, (bound, sketch) in enumerate(self._prospects) if wanted(sketch)]
        heapify(heap)
        while heap:
            _, number, depth = heappop(heap)
            sketch = self._prospects[number][1]
            if depth is _Depth.GUESSED and (orders := self._timed(sketch)):
                heappush(heap, (orders[0][0], number, _Depth.TIMED))
            elif depth is _Depth.TIMED and (scored := self._work_out(sketch)) is not None:
                heappush(heap, (key(scored, self.objective), number, _Depth.DONE))
            elif depth is _Depth.DONE and (found := self._worked[sketch]) is not None:
                yield found

    def variant(self, sketch: Sketch, wanted: Callable[[Setting], bool] = lambda _: True) -> Scored | None:
        """The best variant of a sketch with a wanted order of its pipeline."""
        orders = tuple(order for order in pipelines(self.space, sketch) if wanted(order))
        if self.objective is Objective.MEMORY:
            return self._leanest(orders)
        found = Climb(self.space, self.memory, self._rank, orders).first_that_fits()
        return None if found is None else self.score(found)

    def score(self, setting: Setting) -> Scored:
        """A setting with its memory and time."""
        return Scored(setting, self.memory.need(setting), self._clock(setting))

    def _look(self) -> Iterator[tuple[Bound, Sketch]]:
        """Every sketch that some variant of fits."""
        for layout in layouts(self.space):
            for sketch in sketches(self.space, layout):
                light = self._lightest(sketch)
                if light is None:
                    continue
                if self.closest is None or light.need < self.closest.need:
                    self.closest = light
                if not self.memory.fits(light.setting):
                    break  # larger micro-batches need more
                yield self._guess(sketch, light), sketch

    def _lightest(self, sketch: Sketch) -> Closest | None:
        """A variant that fits or, where none does, the one that needs least."""
        best: Closest | None = None
        orders = list(pipelines(self.space, sketch))
        for order in takewhile(lambda one: one.schedule is orders[0].schedule, orders):
            for setting in lightest(self.space, order):
                found = Closest(self.memory.need(setting), setting)
                if self.memory.fits(setting) and self.objective is not Objective.MEMORY:
                    return found
                best = found if best is None or found.need < best.need else best
        return best

    def _guess(self, sketch: Sketch, light: Closest) -> Bound:
        if self.objective is Objective.MEMORY:
            return (light.need * (100 - SLACK_PERCENT) // 100,)
        first = mildest(self.space, next(pipelines(self.space, sketch)))
        step = self._clock(first)
        if step is None:
            return by_rule(first)
        return (step.step_us * (1_000_000 - step.bubble_ppm) // 1_000_000 * (100 - SLACK_PERCENT) // 100,)

    def _timed(self, sketch: Sketch) -> list[tuple[Bound, Setting]]:
        """Orders of a sketch's pipeline with the time of each when memory asks for nothing, best first."""
        if sketch not in self._orders:
            self._orders[sketch] = sorted(
                ((self._time(order), order) for order in pipelines(self.space, sketch)), key=lambda pair: pair[0]
            )
        return self._orders[sketch]

    def _time(self, order: Setting) -> Bound:
        if self.objective is Objective.MEMORY:
            return (min(self.memory.need(one) for one in lightest(self.space, order)),)
        return self._rank(mildest(self.space, order))

    def _work_out(self, sketch: Sketch) -> Scored | None:
        if sketch not in self._worked:
            self._worked[sketch] = self.variant(sketch)
        return self._worked[sketch]

    def _leanest(self, orders: tuple[Setting, ...]) -> Scored | None:
        """Of all variants that fit the one that needs least."""
        lean = (order for order in orders if order.schedule in LEAN or "schedule" in self.space.pins)
        fitting = (one for order in lean for one in savings(self.space, order) if self.memory.fits(one))
        scored = (self.score(one) for one in fitting)
        return min(scored, key=lambda one: key(one, self.objective), default=None)

    def _rank(self, setting: Setting) -> Bound:
        step = self._clock(setting)
        return by_rule(setting) if step is None else (step.step_us,)
