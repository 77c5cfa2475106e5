"""Fewer micro-batches that show the same as all of them: once every stage has work, a step repeats itself. Pure."""

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import group_size
from kuangchao_operator.layers.strategy.schedule.orders import ZERO_BUBBLE


def fewer(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int, passes: int) -> int:
    """How many micro-batches to look at so that there are about `passes` passes; never less than fill the pipeline.

    Interleaved groups keep their size; where that cannot be, all micro-batches are taken.
    """
    each = pipeline * virtual * (3 if schedule in ZERO_BUBBLE else 2)
    most = min(micro_batches, max(passes // each, 2 * pipeline))
    if schedule is not Schedule.INTERLEAVED:
        return most
    size = group_size(pipeline, micro_batches)
    same = (
        n for n in range(most, pipeline - 1, -1) if n % size == micro_batches % size and group_size(pipeline, n) == size
    )
    return next(same, micro_batches)
