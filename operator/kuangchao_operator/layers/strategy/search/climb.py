"""From the mildest savings of memory upwards until something fits: the fastest variant of one sketch. Pure.

More recomputation and more sharding never make a step shorter, so the first variant that fits, in order of time, is the
fastest of all; and what 1F1B cannot do without, a schedule that holds more cannot do without either.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.search.variants import SHARDING, depths, floors, saved, shardings

Bound = tuple[int, ...]
_HEAVIER = (
    Schedule.ONE_F_ONE_B,
    Schedule.INTERLEAVED,
    Schedule.ZERO_BUBBLE_H1,
    Schedule.ZERO_BUBBLE_H2,
    Schedule.GPIPE,
)
"""Schedules that hold at least what 1F1B holds with the same cut."""


class _Step(NamedTuple):
    """A variant: an order of the pipeline by number, a kind of sharding and an amount of recomputation by place."""

    order: int
    kind: int
    depth: int


class Climb:
    """Variants of one sketch, in order of time."""

    def __init__(
        self, space: Space, memory: Memory, rank: Callable[[Setting], Bound], orders: tuple[Setting, ...]
    ) -> None:
        self._space, self._memory, self._rank = space, memory, rank
        self._depths = depths(space)
        self._floors = {
            order.layout.stage_layers: floors(space, order, memory.fits)
            for order in orders
            if order.schedule is Schedule.ONE_F_ONE_B
        }
        self._orders = tuple((order, tuple(self._least(order).items())) for order in orders)
        self._heap: list[tuple[Bound, int, _Step]] = []
        self._seen: set[_Step] = set()
        for number in range(len(orders)):
            self._start(number)

    def first_that_fits(self) -> Setting | None:
        """The fastest variant that fits."""
        while self._heap:
            _, _, step = heappop(self._heap)
            setting = self._setting(step)
            if self._memory.fits(setting):
                return setting
            self._push(step._replace(depth=step.depth + 1))
            kinds = self._orders[step.order][1]
            if step.kind + 1 < len(kinds):
                self._push(_Step(step.order, step.kind + 1, kinds[step.kind + 1][1]))
        return None

    def _start(self, number: int) -> None:
        """The mildest variants of an order."""
        for place, (kind, depth) in enumerate(self._orders[number][1]):
            self._push(_Step(number, place, depth))
            if kind is not Sharding.NONE:
                break  # sharding the optimizer alone makes updates shorter; what is stronger waits until it must

    def _push(self, step: _Step) -> None:
        if step not in self._seen and step.depth < len(self._depths):
            self._seen.add(step)
            heappush(self._heap, (self._rank(self._setting(step)), len(self._seen), step))

    def _setting(self, step: _Step) -> Setting:
        order, kinds = self._orders[step.order]
        return saved(order, kinds[step.kind][0], self._depths[step.depth])

    def _least(self, order: Setting) -> dict[Sharding, int]:
        """Kinds of sharding that may fit, and with how much recomputation at least."""
        if order.schedule not in _HEAVIER or not self._floors:
            return dict.fromkeys(shardings(self._space, order), 0)
        if order.layout.stage_layers in self._floors:
            return self._floors[order.layout.stage_layers]
        kinds = {kind for floor in self._floors.values() for kind in floor}
        # cut otherwise, so that the mildest of what the cuts of 1F1B ask for is all that is known
        return {
            kind: min(floor[kind] for floor in self._floors.values() if kind in floor)
            for kind in sorted(kinds, key=SHARDING.index)
        }
