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
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.search.climb import Bound, Climb
from kuangchao_operator.layers.strategy.search.layouts import Sketch, layouts, sketches
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.rank import Clock, Scored, by_rule, key
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.search.variants import fastest, lightest, mildest, pipelines, savings

SLACK_PERCENT: Final = 15
"""Taken off a first bound of a pipeline: it is that of the simplest order, and one with finer pieces may balance them
better."""
LEAN: Final = (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_V)
"""Schedules worth a look for memory: the others hold at least what 1F1B holds."""


class Closest(NamedTuple):
    """The setting that needs least of all, and what it needs."""

    need: int
    setting: Setting


class _Depth(IntEnum):
    """How closely a sketch was looked at."""

    GUESSED = 0
    CLIMBED = 1
    DONE = 2


class Search:
    """One search over one space."""

    def __init__(self, space: Space, memory: Memory, clock: Clock, objective: Objective) -> None:
        self.space, self.memory, self.objective = space, memory, objective
        self._clock = clock
        self._of: dict[Layout, tuple[Sketch, ...]] = {}
        self._fitting: dict[Layout, frozenset[Sketch]] = {}
        self._ordered: dict[Sketch, tuple[Setting, ...]] = {}
        self._climbs: dict[Sketch, Climb] = {}
        self._worked: dict[Sketch, Scored | None] = {}
        self.closest: Closest | None = None
        """Of all that does not fit the setting that needs least; None while something may."""

    def feasible(self) -> bool:
        """Whether anything fits; what is closest to it is not looked for."""
        return any(True for row in self._rows() for _ in self._fit(row, self._any_fits))

    def ranked(self, wanted: Callable[[Sketch], bool] = lambda _: True) -> Iterator[Scored]:
        """The best of each wanted sketch, best first; nothing where nothing fits."""
        heap = [(bound, n, _Depth.GUESSED) for n, (bound, sketch) in enumerate(self._prospects) if wanted(sketch)]
        heapify(heap)
        while heap:
            _, number, depth = heappop(heap)
            sketch = self._prospects[number][1]
            if depth is _Depth.DONE and (found := self._worked[sketch]) is not None:
                yield found
                continue
            bound = self._climbed(sketch, heap[0][0] if heap else ())
            if bound is not None:
                heappush(heap, (bound, number, _Depth.CLIMBED))
            elif (scored := self._worked[sketch]) is not None:
                heappush(heap, (key(scored, self.objective), number, _Depth.DONE))

    def variant(self, sketch: Sketch, wanted: Callable[[Setting], bool] = lambda _: True) -> Scored | None:
        """The best variant of a sketch with a wanted order of its pipeline."""
        orders = tuple(order for order in self._orders(sketch) if wanted(order))
        if self.objective is Objective.MEMORY:
            return self._leanest(orders)
        found = self._climb(orders).advance()
        return None if found is None else self.score(found)

    def score(self, setting: Setting) -> Scored:
        """A setting with its memory and time."""
        return Scored(setting, self.memory.need(setting), self._clock(setting))

    @cached_property
    def _prospects(self) -> tuple[tuple[Bound, Sketch], ...]:
        return tuple((self._guess(sketch), sketch) for row in self._rows() for sketch in row)

    def _rows(self) -> Iterator[tuple[Sketch, ...]]:
        """The sketches of each layout, smallest micro-batch first."""
        for layout in layouts(self.space):
            row = tuple(sketch for sketch in sketches(self.space, layout) if self._orders(sketch))
            if row:
                self._of[layout] = row
                yield row

    def _orders(self, sketch: Sketch) -> tuple[Setting, ...]:
        """Every order and cut of a sketch's pipeline."""
        if sketch not in self._ordered:
            self._ordered[sketch] = tuple(pipelines(self.space, sketch))
        return self._ordered[sketch]

    def _guess(self, sketch: Sketch) -> Bound:
        if self.objective is Objective.MEMORY:
            needs = (self.memory.need(one) for one in self._lightest(sketch))
            return (min(needs) * (100 - SLACK_PERCENT) // 100,)
        return min(self._unfilled(order) for order in self._simplest(sketch))

    def _unfilled(self, order: Setting) -> Bound:
        """An order's best rank as if its pipeline had no bubble, and somewhat better."""
        step = self._clock(fastest(self.space, order))
        if step is None:
            return by_rule(mildest(self.space, order))
        if order.layout.pipeline == 1:
            return (step.step_us,)
        return (step.step_us * (1_000_000 - step.bubble_ppm) // 1_000_000 * (100 - SLACK_PERCENT) // 100,)

    def _simplest(self, sketch: Sketch) -> Iterator[Setting]:
        """The cuts of the simplest order of a sketch's pipeline."""
        orders = self._orders(sketch)
        return takewhile(lambda one: one.schedule is orders[0].schedule, orders)

    def _whole(self, sketch: Sketch) -> Iterator[Setting]:
        """Those of them that shard over all ranks, which need no more than those that shard over some."""
        return (one for one in self._simplest(sketch) if not one.layout.shard_ranks)

    def _fits(self, sketch: Sketch) -> bool:
        """Whether some variant of a sketch fits."""
        layout = sketch.layout
        if layout not in self._fitting:
            self._fitting[layout] = frozenset(self._fit(self._of[layout], self._look))
        return sketch in self._fitting[layout]

    def _fit(self, row: tuple[Sketch, ...], fits: Callable[[Sketch], bool]) -> Iterator[Sketch]:
        """Those of a layout's sketches of which some variant fits.

        Where none does, none does with a larger micro-batch, but for two: a single micro-batch of a step, since
        gradients may be whole between several (`reduced_bytes`); and any where stages interleave, since how many are in
        flight goes up and down with how they come out in groups.
        """
        steady, full = self._orders(row[0])[0].schedule is not Schedule.INTERLEAVED, False
        for sketch in row:
            if full and steady and sketch.micro_batches > 1:
                continue
            if fits(sketch):
                yield sketch
            else:
                full = True

    def _any_fits(self, sketch: Sketch) -> bool:
        """Whether one of the variants that need least fits."""
        return any(self.memory.fits(one) for one in self._lightest(sketch))

    def _look(self, sketch: Sketch) -> bool:
        """The same; where none does, the closest of all is remembered."""
        if self._any_fits(sketch):
            return True
        found = min((Closest(self.memory.need(one), one) for one in self._lightest(sketch)), key=lambda one: one.need)
        if self.closest is None or found.need < self.closest.need:
            self.closest = found
        return False

    def _lightest(self, sketch: Sketch) -> Iterator[Setting]:
        return (one for order in self._whole(sketch) for one in lightest(self.space, order))

    def _climbed(self, sketch: Sketch, rival: Bound) -> Bound | None:
        """A truer bound of a sketch, once it is above a rival's; None: its best variant is known, or that none fits."""
        if sketch in self._worked:
            return None
        if self.objective is Objective.MEMORY or not self._fits(sketch):
            self._worked[sketch] = self.variant(sketch) if self._fits(sketch) else None
            return None
        if sketch not in self._climbs:
            self._climbs[sketch] = self._climb(self._orders(sketch))
        climb = self._climbs[sketch]
        found = climb.advance(rival)
        if found is None and climb.bound is not None:
            return climb.bound
        self._worked[sketch] = None if found is None else self.score(found)
        del self._climbs[sketch]
        return None

    def _climb(self, orders: tuple[Setting, ...]) -> Climb:
        return Climb(self.space, self.memory, self._rank, tuple((self._best_case(one), one) for one in orders))

    def _best_case(self, order: Setting) -> Bound:
        """The rank that no variant of an order beats, were memory no matter."""
        step = self._clock(fastest(self.space, order))
        return by_rule(mildest(self.space, order)) if step is None else (step.step_us,)

    def _leanest(self, orders: tuple[Setting, ...]) -> Scored | None:
        """Of all variants that fit the one that needs least."""
        whole = (order for order in orders if not order.layout.shard_ranks)
        lean = (order for order in whole if order.schedule in LEAN or "schedule" in self.space.pins)
        fitting = (one for order in lean for one in savings(self.space, order) if self.memory.fits(one))
        scored = (self.score(one) for one in fitting)
        return min(scored, key=lambda one: key(one, self.objective), default=None)

    def _rank(self, setting: Setting) -> Bound:
        step = self._clock(setting)
        return by_rule(setting) if step is None else (step.step_us,)
