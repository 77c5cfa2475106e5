"""Fewer micro-batches and stages that show the same as all of them: once every stage has work, a step repeats itself.

Pure.
"""

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import group_size
from kuangchao_operator.layers.strategy.schedule.orders import ZERO_BUBBLE

MOST = 512
"""Micro-batches that anybody looks at."""


def fewer(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int, passes: int, *, fills: int = 4) -> int:
    """How many micro-batches to look at so that there are about `passes` passes, at least `fills` times the stages.

    More than MOST show nothing new. Interleaved groups keep their size; where that cannot be, all of them are taken.
    """
    each = pipeline * virtual * (3 if schedule in ZERO_BUBBLE else 2)
    most = min(micro_batches, max(min(MOST, passes // each), fills * pipeline))
    if schedule is not Schedule.INTERLEAVED:
        return most
    size = group_size(pipeline, micro_batches)
    rest = micro_batches % size
    same = (n for n in range(most, pipeline - 1, -1) if n % size == rest and group_size(pipeline, n) == size)
    return next(same, micro_batches)


def spread(count: int, most: int) -> tuple[int, ...]:
    """At most `most` of 0 .. count-1, evenly spread, the first and the last among them."""
    if count <= most:
        return tuple(range(count))
    return tuple(sorted({n * (count - 1) // (most - 1) for n in range(most)})) if most > 1 else (0,)
