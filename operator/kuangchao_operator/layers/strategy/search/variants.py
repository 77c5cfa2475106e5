"""Schedules, cuts, shardings and recomputations of one sketch, each only as much as is needed. Pure.

Recomputation and sharding take memory down and time up, so a search begins with the mildest and goes on only as far as
memory asks it to.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd
from typing import Final

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Recompute, Sharding
from kuangchao_operator.layers.strategy.footprint.setting import Recomputed, Setting
from kuangchao_operator.layers.strategy.runnable import unbuilt
from kuangchao_operator.layers.strategy.search.cuts import cuts
from kuangchao_operator.layers.strategy.search.layouts import Sketch, plain
from kuangchao_operator.layers.strategy.search.space import Space

MOST_CHUNKS: Final = 8
"""Chunks of a stage beyond which the messages of an interleaved schedule cost more than its bubble."""
BY_OPERATOR: Final = frozenset({Recomputed.OPERATORS})
RECOMPUTE: Final = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
SHARDING: Final = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.FULL)
HYBRID: Final = (Sharding.GRADIENTS, Sharding.FULL)
"""Kinds that shard groups of ranks may have."""
SCHEDULES: Final = (
    Schedule.ONE_F_ONE_B,
    Schedule.INTERLEAVED,
    Schedule.ZERO_BUBBLE_H1,
    Schedule.ZERO_BUBBLE_V,
    Schedule.ZERO_BUBBLE_H2,
)
"""Without GPipe, which has the bubble of 1F1B and more micro-batches in flight; it is used when it is pinned."""


def pipelines(space: Space, sketch: Sketch) -> Iterator[Setting]:
    """Every order and cut of a sketch's pipeline that can be carried out; the simplest first."""
    return (one for one in _pipelines(space, sketch) if depths(space, one))


def _pipelines(space: Space, sketch: Sketch) -> Iterator[Setting]:
    base = plain(space, sketch)
    if sketch.layout.pipeline == 1:
        if _undivided(space):
            yield base
            yield from _hybrid(space, base)
        return
    for schedule in space.options("schedule", SCHEDULES):
        for virtual in _chunks(space, sketch, schedule):
            for layers in cuts(space, sketch.layout.pipeline, virtual):
                layout = replace(sketch.layout, virtual=virtual, stage_layers=layers)
                yield replace(base, schedule=schedule, layout=layout)


def _hybrid(space: Space, base: Setting) -> Iterator[Setting]:
    """The same with states sharded inside islands or nodes only: more memory, and no gathering between nodes.

    It pays where ranks that hold the same parameters are on several nodes, and not in a pipeline, which gathers and
    reduces once a step. How experts would be divided beside it is another matter, so models with experts have none.
    """
    layout = base.layout
    if not space.shaped or space.model.experts is not None:
        return
    node = space.per_node - space.per_node % space.per_pod or space.per_node
    for width in sorted({space.island, node}, reverse=True):
        size = gcd(width // layout.tensor, layout.replicas) if width % layout.tensor == 0 else 1
        order = replace(base, layout=replace(layout, shard_ranks=size))
        if 1 < size < layout.replicas and shardings(space, order):
            yield order


def mildest(space: Space, order: Setting) -> Setting:
    """What is best by rule if memory is no matter: nothing recomputed and nothing sharded, where these are open."""
    return saved(order, shardings(space, order)[0], depths(space, order)[0])


def fastest(space: Space, order: Setting) -> Setting:
    """What is best by time if memory is no matter: nothing recomputed, the optimizer's work shared where it can be."""
    kinds = shardings(space, order)
    kind = Sharding.OPTIMIZER if Sharding.OPTIMIZER in kinds else kinds[0]
    return saved(order, kind, depths(space, order)[0])


def lightest(space: Space, order: Setting) -> Iterator[Setting]:
    """For each kind of sharding, strongest first, the setting that needs least: as much recomputed as may be."""
    deepest = depths(space, order)[-1]
    yield from (saved(order, kind, deepest) for kind in reversed(shardings(space, order)))


def savings(space: Space, order: Setting) -> Iterator[Setting]:
    """Every sharding and recomputation."""
    yield from (saved(order, kind, depth) for kind in shardings(space, order) for depth in depths(space, order))


def floors(space: Space, order: Setting, fits: Callable[[Setting], bool]) -> dict[Sharding, int]:
    """For each kind of sharding that can fit the least recomputation, as a place in `depths`, with which it does."""
    places, found = depths(space, order), dict[Sharding, int]()
    least = len(places)
    for kind in shardings(space, order):
        if least == len(places) and not fits(saved(order, kind, places[-1])):
            continue  # nothing of a kind fits where recomputing everything does not
        least = min(least, len(places) - 1)
        least = next((n for n in range(least) if fits(saved(order, kind, places[n]))), least)
        found[kind] = least
    return found


def shardings(space: Space, order: Setting) -> tuple[Sharding, ...]:
    """Kinds of sharding to consider, mildest first; for hybrid sharding those that gather or reduce often."""
    if order.layout.shard_ranks:
        return tuple(kind for kind in space.options("sharding", HYBRID) if kind in HYBRID)
    return space.options("sharding", SHARDING if order.layout.replicas > 1 else SHARDING[:1])


def depths(space: Space, order: Setting) -> tuple[Recompute, ...]:
    """Amounts of recomputation to consider, least first; none where the order cannot be carried out at all."""
    every = space.options("recompute", RECOMPUTE if space.shaped else RECOMPUTE[:1])
    return every if space.hypothetical else tuple(depth for depth in every if unbuilt(order, depth) is None)


def _undivided(space: Space) -> bool:
    """Whether what is pinned allows a single stage."""
    return (
        space.pins.get("virtualStages", 1) == 1
        and space.pins.get("schedule", Schedule.ONE_F_ONE_B) is Schedule.ONE_F_ONE_B
        and len(space.pins.get("stageLayers", ())) <= 1
    )


def saved(setting: Setting, kind: Sharding, depth: Recompute) -> Setting:
    """The setting with that sharding and recomputation."""
    modules = BY_OPERATOR if depth is Recompute.SELECTIVE else setting.modules
    return replace(setting, sharding=kind, recompute=depth, modules=modules)


def _chunks(space: Space, sketch: Sketch, schedule: Schedule) -> tuple[int, ...]:
    pieces, pipeline = space.pieces, sketch.layout.pipeline
    if schedule is Schedule.ZERO_BUBBLE_V:
        return tuple(v for v in space.options("virtualStages", (2,)) if v == 2 and pieces >= 2 * pipeline)
    if schedule is not Schedule.INTERLEAVED:
        return tuple(v for v in space.options("virtualStages", (1,)) if v == 1)
    most = pieces // pipeline
    found = tuple(v for v in range(2, min(most, MOST_CHUNKS) + 1) if most % v == 0)
    found = found or tuple(v for v in (2, 4, 8) if v <= most)
    return tuple(v for v in space.options("virtualStages", found) if 1 < v <= most)
