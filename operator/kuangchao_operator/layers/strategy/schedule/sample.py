"""Fewer micro-batches and stages that show the same as all of them: once every stage has work, a step repeats itself.

Pure.
"""

from itertools import chain

from kuangchao_contracts.parallel import ZERO_BUBBLE, Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import group_size

MOST = 512
"""Micro-batches that anybody looks at."""


def fewer(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int, passes: int, *, fills: int = 4) -> int:
    """How many micro-batches to look at so that there are about `passes` passes, at least `fills` times the stages.

    More than MOST show nothing new. Interleaved groups keep their size, and there are two at least, so that one can be
    left out to see what it adds: for that there may be some more, and where that cannot be, all of them are taken.
    """
    each = pipeline * virtual * (3 if schedule in ZERO_BUBBLE else 2)
    most = min(micro_batches, max(min(MOST, passes // each), fills * pipeline))
    if schedule is not Schedule.INTERLEAVED:
        return most
    size = group_size(pipeline, micro_batches)
    rest = micro_batches % size
    last = most - (most - rest) % size
    alike = chain(range(last, 2 * size - 1, -size), range(max(last + size, 2 * size + rest), micro_batches, size))
    return next((n for n in alike if group_size(pipeline, n) == size), micro_batches)


def spread(count: int, most: int) -> tuple[int, ...]:
    """At most `most` of 0 .. count-1, evenly spread, the first and the last among them."""
    if count <= most:
        return tuple(range(count))
    return tuple(sorted({n * (count - 1) // (most - 1) for n in range(most)})) if most > 1 else (0,)
