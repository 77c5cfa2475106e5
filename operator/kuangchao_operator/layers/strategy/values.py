"""Which values a size of a layout may have as far as it alone is concerned, and a layout with another one. Pure.

What is here is tried (`nearest`), so it may hold too much, and must leave out nothing that could be legal and nearest.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import lcm, prod
from typing import Final

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.footprint.layout import ImpossibleLayoutError, even
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.sizes import Sizes
from kuangchao_operator.layers.strategy.staging import ENDS

MOST_TRIED: Final = 32
"""Multiples of a number, or lengths of a list, that are tried on either side."""
MOST_MOVED: Final = 1_024
"""Layers that are moved one by one from stage to stage; where it would be more, an even cut is as near."""
MEMBERS: Final = {
    "virtualStages": "virtual",
    "stageLayers": "stage_layers",
    "microBatch": "micro_batch",
    "accumulationSteps": "micro_batches",
    "globalBatch": "global_batch",
    "expertTensor": "expert_tensor",
    "shardRanks": "shard_ranks",
}
"""What sizes call a field, where it is not the same."""
SCHEDULES: Final = (Schedule.ONE_F_ONE_B, *(one for one in Schedule if one is not Schedule.ONE_F_ONE_B))
"""The plain one first."""
AXES: Final = ("tensor", "context", "pipeline", "data")


def value(sizes: Sizes, field: str) -> object:
    """What sizes have for a field; None where it is open."""
    found: object = getattr(sizes, MEMBERS.get(field, field))
    return found


def changed(sizes: Sizes, field: str, other: object) -> Sizes:
    """Sizes with another value of one field."""
    return sizes._replace(**{MEMBERS.get(field, field): other})  # type: ignore[arg-type]  # laws take what values gives


def values(sizes: Sizes, field: str) -> Iterable[object]:
    """Values that a field may have; those that are no numbers in order of preference."""
    if field in AXES and sizes.devices is not None:
        return divisors(sizes.devices)
    finders: dict[str, Callable[[], Iterable[object]]] = {
        "tensor": lambda: divisors(sizes.model.heads) if sizes.model is not None else (1,),
        "context": lambda: divisors(sizes.sequence_length or 1),
        "data": lambda: divisors(sizes.global_batch or 1),
        "pipeline": lambda: range(1, min(_layers(sizes), MOST_COUNT) + 1),
        "expert": lambda: _experts(sizes)[0],
        "expertTensor": lambda: _experts(sizes)[1],
        "virtualStages": lambda: _virtual(sizes),
        "microBatch": lambda: divisors(sizes.global_batch or 1),
        "accumulationSteps": lambda: range(1, 2 * (sizes.pipeline or 1) + 1),
        "shardRanks": lambda: (0, *divisors((sizes.data or 1) * (sizes.context or 1))),
        "sequence": lambda: (True, False),
        "schedule": lambda: SCHEDULES,
        "stageLayers": lambda: _lists(sizes),
        "globalBatch": lambda: _batches(sizes),
        "devices": lambda: counts(sizes, 1, MOST_COUNT),
    }
    return finders[field]() if field in finders else ()


def counts(sizes: Sizes, per_pod: int, most: int) -> Iterator[int]:
    """Numbers of devices around the one asked for, whole pods that the axes given divide."""
    known = prod(size for size in (sizes.tensor, sizes.context, sizes.pipeline) if size is not None)
    given, units = min(sizes.devices or 1, most), (per_pod, lcm(per_pod, known))
    return chain(*(around(given, unit, most) for unit in units), () if sizes.data is None else (known * sizes.data,))


def around(number: int, unit: int, most: int) -> Iterator[int]:
    """Multiples of a unit on either side of a number."""
    below = number // unit
    return (unit * n for n in range(max(1, below - MOST_TRIED), below + MOST_TRIED + 1) if unit * n <= most)


def _layers(sizes: Sizes) -> int:
    return sizes.model.layers if sizes.model is not None else 1


def _experts(sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    moe = sizes.model.experts if sizes.model is not None else None
    return ((1,), (1,)) if moe is None else (divisors(moe.count), divisors(moe.ffn))


def _virtual(sizes: Sizes) -> Iterator[int]:
    """What schedules want, and the most that the layers are enough for."""
    pipelines = (sizes.pipeline,) if sizes.pipeline is not None else (2, *divisors(sizes.devices or 1))
    return chain((1, 2), (most for p in pipelines if (most := _layers(sizes) // p) > 0))


def _batches(sizes: Sizes) -> Iterator[int]:
    """Batches around the one given, and around the least with which every stage has work."""
    data = sizes.data or 1
    unit = data * (sizes.micro_batch or 1)
    given, filled = sizes.global_batch or 1, unit * (sizes.pipeline or 1)
    near = (around(number, step, MOST_COUNT) for number in (given, max(given, filled)) for step in (data, unit))
    return chain(*near)


def _lists(sizes: Sizes) -> Iterator[tuple[int, ...]]:
    """Whole lists: as long as given with as few layers moved as can be, or of the number of stages; or none."""
    given, layers = sizes.stage_layers, _layers(sizes)
    if sizes.model is None:
        # as many as the list says, or as stages need
        layers = max(sum(given), len(given), (sizes.pipeline or 1) * (sizes.virtual or 1))
    yield from _moved(given, layers) if any(given) else ()
    lengths = sorted(range(1, min(layers, len(given) + MOST_TRIED) + 1), key=lambda n: (abs(n - len(given)), n))
    stages = () if sizes.pipeline is None else (sizes.pipeline * (sizes.virtual or 1),)
    for length in (*(n for n in stages if 0 < n <= layers), *lengths[:MOST_TRIED]):
        yield from _even(layers, length)
    yield ()


def _even(layers: int, count: int) -> Iterator[tuple[int, ...]]:
    try:
        found = even(layers, count)
    except ImpossibleLayoutError:
        return
    if min(found) > 0:
        yield found


def _moved(given: tuple[int, ...], layers: int) -> Iterator[tuple[int, ...]]:
    """The list with a layer for every stage that has none and its sum made right: what is missing goes to those that
    have fewest, what is too much is taken from those that have most, the last ones first."""
    cut = [size if n in (0, len(given) - 1) and len(given) > 1 else max(1, size) for n, size in enumerate(given)]
    missing = layers - sum(cut)
    if not cut or len(cut) > layers + ENDS or abs(missing) > MOST_MOVED:
        return
    for _ in range(abs(missing)):
        # an end that was left without layers stays so
        open_ = [n for n, size in enumerate(cut) if size > 0] or range(len(cut))
        place = min(open_, key=lambda n: (cut[n] if missing > 0 else -cut[n], -n))
        cut[place] += 1 if missing > 0 else -1
    yield tuple(cut)
