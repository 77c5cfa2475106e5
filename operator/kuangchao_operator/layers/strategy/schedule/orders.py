"""The order of passes on every stage, for every schedule. Pure.

Sources: Huang et al. 2019 (GPipe), Narayanan et al. 2021 (1F1B, interleaved), Megatron-LM's schedules.py (order and
groups of the interleaved one), Qi et al. 2023 ("Zero Bubble Pipeline Parallelism": H1, H2) and Qi et al. 2024
("Pipeline Parallelism with Controllable Memory": V).
"""

from collections.abc import Iterator

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import ZERO_BUBBLE, Schedule
from kuangchao_operator.layers.strategy.footprint.schedules import group_size
from kuangchao_operator.layers.strategy.schedule.passes import Kind, Order, Orders, Pass, Placement
from kuangchao_operator.layers.strategy.schedule.vee import vee

F, B, W = Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT


def placement(schedule: Schedule, pipeline: int, virtual: int) -> Placement:
    """Where the pieces stand under a schedule."""
    return Placement(pipeline, virtual, folded=schedule is Schedule.ZERO_BUBBLE_V and pipeline > 1)


def orders(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int) -> Orders:
    """What each of `pipeline` stages of `virtual` chunks runs for one step of `micro_batches`.

    Raises InvalidInputError where the schedule has no order for these numbers.
    """
    _check(schedule, pipeline, virtual, micro_batches)
    return tuple(_order(schedule, stage, pipeline, virtual, micro_batches) for stage in range(pipeline))


def _check(schedule: Schedule, pipeline: int, virtual: int, micro_batches: int) -> None:
    for field, value in (("pipeline", pipeline), ("virtualStages", virtual), ("microBatches", micro_batches)):
        if value < 1:
            raise InvalidInputError(field, value, "must be at least 1", 1)
    if schedule is Schedule.ZERO_BUBBLE_V and virtual != 2:
        raise InvalidInputError("virtualStages", virtual, f"{schedule} folds the model once over the stages", 2)
    if schedule not in (Schedule.INTERLEAVED, Schedule.GPIPE, Schedule.ZERO_BUBBLE_V) and virtual != 1:
        raise InvalidInputError("virtualStages", virtual, f"{schedule} has one chunk on each stage", 1)
    if schedule is Schedule.INTERLEAVED:
        _check_groups(pipeline, micro_batches)


def _check_groups(pipeline: int, micro_batches: int) -> None:
    rest = micro_batches % group_size(pipeline, micro_batches)
    if micro_batches < pipeline or 0 < rest < pipeline:
        why = f"a group of micro-batches must reach all {pipeline} stages that interleave"
        raise InvalidInputError("microBatches", micro_batches, why, max(1, micro_batches // pipeline) * pipeline)


def _order(schedule: Schedule, stage: int, pipeline: int, virtual: int, micro_batches: int) -> Order:
    if pipeline == 1:
        return tuple(_alone(virtual, micro_batches, splits=schedule in ZERO_BUBBLE))
    match schedule:
        case Schedule.GPIPE:
            return tuple(_all_forward_first(virtual, micro_batches))
        case Schedule.ONE_F_ONE_B:
            return tuple(_one_chunk(micro_batches, pipeline - stage, None))
        case Schedule.INTERLEAVED:
            return tuple(_interleaved(stage, pipeline, virtual, micro_batches))
        case Schedule.ZERO_BUBBLE_H1:
            return tuple(_one_chunk(micro_batches, pipeline - stage, stage))
        case Schedule.ZERO_BUBBLE_H2:
            return tuple(_one_chunk(micro_batches, 2 * (pipeline - stage) - 1, 2 * stage))
        case Schedule.ZERO_BUBBLE_V:
            return tuple(vee(stage, pipeline, micro_batches))


def _alone(virtual: int, micro_batches: int, *, splits: bool) -> Iterator[Pass]:
    """Gradient accumulation: a device on its own has no reason to hold more than one micro-batch."""
    for batch in range(micro_batches):
        for chunk in range(virtual):
            yield Pass(F, batch, chunk)
        for chunk in reversed(range(virtual)):
            yield Pass(B, batch, chunk)
            if splits:
                yield Pass(W, batch, chunk)


def _all_forward_first(virtual: int, micro_batches: int) -> Iterator[Pass]:
    for chunk in range(virtual):
        for batch in range(micro_batches):
            yield Pass(F, batch, chunk)
    for chunk in reversed(range(virtual)):
        for batch in range(micro_batches):
            yield Pass(B, batch, chunk)


def _one_chunk(micro_batches: int, ahead: int, delay: int | None) -> Iterator[Pass]:
    """`ahead` forward passes, then backward and forward in turn.

    `delay`: how many backward passes are ahead of the weight gradients, which makes all stages hold the same number of
    micro-batches; None where they are no passes of their own.
    """
    for batch in range(min(ahead, micro_batches)):
        yield Pass(F, batch)
    for batch in range(micro_batches):
        yield Pass(B, batch)
        if delay is not None and batch >= delay:
            yield Pass(W, batch - delay)
        if batch + ahead < micro_batches:
            yield Pass(F, batch + ahead)
    for batch in range(max(0, micro_batches - (delay or 0)), micro_batches if delay else 0):
        yield Pass(W, batch)


def _interleaved(stage: int, pipeline: int, virtual: int, micro_batches: int) -> Iterator[Pass]:
    forward = list(_turns(virtual, micro_batches, group_size(pipeline, micro_batches)))
    warm_up = 2 * (pipeline - stage - 1) + (virtual - 1) * group_size(pipeline, micro_batches)
    warm_up = min(warm_up, len(forward))
    for batch, chunk in forward[:warm_up]:
        yield Pass(F, batch, chunk)
    for n, (batch, chunk) in enumerate(forward):
        if n + warm_up < len(forward):
            yield Pass(F, *forward[n + warm_up])
        yield Pass(B, batch, virtual - 1 - chunk)


def _turns(virtual: int, micro_batches: int, group: int) -> Iterator[tuple[int, int]]:
    """Micro-batch and chunk of each forward pass: a group of micro-batches through each chunk, then the next group."""
    for start in range(0, micro_batches, group):
        for chunk in range(virtual):
            for batch in range(start, min(start + group, micro_batches)):
                yield batch, chunk
