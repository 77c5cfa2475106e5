"""From the mildest savings of memory upwards until something fits: the fastest variant of one sketch. Pure.

More recomputation and more sharding never make a step shorter, so the first variant that fits, in order of time, is the
fastest of all; and what 1F1B cannot do without, a schedule that holds more cannot do without either.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import alike
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.search.variants import depths, floors, saved, shardings

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
    """Variants of one sketch, in order of time. Nothing is asked of memory before it must be."""

    def __init__(
        self, space: Space, memory: Memory, rank: Callable[[Setting], Bound], orders: tuple[tuple[Bound, Setting], ...]
    ) -> None:
        """`rank` says how a variant compares; each order comes with the rank that no variant of it can beat."""
        self._space, self._memory, self._rank = space, memory, rank
        self._orders = tuple(order for _, order in orders)
        self._depths = tuple(len(depths(space, order)) for order in self._orders)
        self._floors: dict[Layout, dict[Sharding, int]] = {}
        self._kinds: dict[int, tuple[tuple[Sharding, int], ...]] = {}
        self._seen: set[_Step] = set()
        self._heap = [(bound, n, _Step(n, -1, 0)) for n, (bound, _) in enumerate(orders)]
        heapify(self._heap)

    @property
    def bound(self) -> Bound | None:
        """What nothing that is left can beat; None: nothing is left."""
        return self._heap[0][0] if self._heap else None

    def advance(self, rival: Bound = ()) -> Setting | None:
        """The fastest variant that fits; None as well once all that is left is behind a rival."""
        while self._heap and not (rival and self._heap[0][0] > rival):
            _, _, step = heappop(self._heap)
            if step.kind < 0:
                self._open(step.order)
                continue
            setting = self._setting(step)
            if self._memory.fits(setting):
                return setting
            self._push(step._replace(depth=step.depth + 1))
            kinds = self._kinds[step.order]
            if step.kind + 1 < len(kinds):
                self._push(_Step(step.order, step.kind + 1, kinds[step.kind + 1][1]))
        return None

    def _open(self, number: int) -> None:
        """The mildest variants of an order: kinds of sharding that need less recomputation than all milder ones."""
        least, kinds = self._depths[number], tuple(self._least(self._orders[number]).items())
        self._kinds[number] = kinds
        for place, (kind, depth) in enumerate(kinds):
            # sharding the optimizer alone makes updates shorter, so it is no worse than none
            if depth < least or kind is Sharding.OPTIMIZER:
                self._push(_Step(number, place, depth))
                least = depth

    def _push(self, step: _Step) -> None:
        if step not in self._seen and step.depth < self._depths[step.order]:
            self._seen.add(step)
            place = len(self._orders) + len(self._seen)
            heappush(self._heap, (self._rank(self._setting(step)), place, step))

    def _setting(self, step: _Step) -> Setting:
        order = self._orders[step.order]
        return saved(order, self._kinds[step.order][step.kind][0], depths(self._space, order)[step.depth])

    def _least(self, order: Setting) -> dict[Sharding, int]:
        """Kinds of sharding that may fit, and with how much recomputation at least."""
        simple = _simplest(order)
        if simple is None:
            return dict.fromkeys(shardings(self._space, order), 0)
        if simple.layout not in self._floors:
            self._floors[simple.layout] = floors(self._space, simple, self._memory.fits)
        return self._floors[simple.layout]


def _simplest(order: Setting) -> Setting | None:
    """1F1B with as many layers on each stage, which needs no more than the order; None where no such is known."""
    layout = order.layout
    if order.schedule not in _HEAVIER:
        return None
    if layout.virtual == 1:
        return replace(order, schedule=Schedule.ONE_F_ONE_B)
    if not alike(order.model):
        return None  # which layers a stage has is then another matter than how many
    every = layout.stage_layers
    whole = None if every is None else tuple(sum(every[n :: layout.pipeline]) for n in range(layout.pipeline))
    return replace(order, schedule=Schedule.ONE_F_ONE_B, layout=replace(layout, virtual=1, stage_layers=whole))
