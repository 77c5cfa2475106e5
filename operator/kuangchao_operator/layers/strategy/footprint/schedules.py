"""How many micro-batches a stage has in flight at its peak, for each of its chunks. Pure.

Sources: Narayanan et al. 2021 (1F1B, interleaved), Megatron-LM's schedules.py (warm-up of the interleaved one), Qi et
al. 2023 and 2024 (zero bubble: H1, H2, V).
"""

from kuangchao_contracts.parallel import Schedule


def in_flight(schedule: Schedule, stage: int, pipeline: int, virtual: int, micro_batches: int) -> tuple[int, ...]:
    """Micro-batches whose activations are held at the peak, one number for each chunk of the stage."""
    if pipeline == 1:
        return (1,) * virtual
    match schedule:
        case Schedule.GPIPE:
            return (micro_batches,) * virtual
        case Schedule.ONE_F_ONE_B:
            return (min(micro_batches, pipeline - stage),)
        case Schedule.INTERLEAVED:
            return _interleaved(stage, pipeline, virtual, micro_batches)
        case Schedule.ZERO_BUBBLE_H1:
            return (min(micro_batches, pipeline),)
        case Schedule.ZERO_BUBBLE_H2:
            return (min(micro_batches, 2 * pipeline - 1),)
        case Schedule.ZERO_BUBBLE_V:
            # down and up again: a device early on the way down is late on the way up; 2 p half chunks on each
            return (min(micro_batches, 2 * pipeline - 1 - stage), min(micro_batches, stage + 1))


def group_size(pipeline: int, micro_batches: int) -> int:
    """Micro-batches that run through a chunk before the next chunk's turn: no group is smaller than the pipeline."""
    for size in range(pipeline, micro_batches):
        rest = micro_batches % size
        if rest == 0 or rest >= pipeline:
            return size
    return max(pipeline, micro_batches)


def _interleaved(stage: int, pipeline: int, virtual: int, micro_batches: int) -> tuple[int, ...]:
    group = group_size(pipeline, micro_batches)
    warm_up = 2 * (pipeline - stage - 1) + (virtual - 1) * group
    held = min(warm_up + 1, micro_batches * virtual)
    counts = [0] * virtual
    for start in range(0, held, group):
        counts[start // group % virtual] += min(group, held - start)
    return tuple(min(count, micro_batches) for count in counts)
