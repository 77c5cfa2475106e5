"""The refusal of a request that breaks no law by what it says, while every layout of it breaks one: which laws stand in
the way, and the nearest change with which there is a layout. Pure.

What is named was searched with. A change after which something fits goes before one after which all needs more memory
than there is, and the latter is said to be so.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.plan import Infeasible, ParallelismMode, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.nearest import written
from kuangchao_operator.layers.strategy.numbers import divisors, nearest_multiples
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.rewrite import changed, value
from kuangchao_operator.layers.strategy.runnable import given, unbuilt
from kuangchao_operator.layers.strategy.search.loosen import (
    Way,
    beyond_island,
    beyond_pool,
    fits,
    kept,
    loosened,
    resized,
)
from kuangchao_operator.layers.strategy.search.nearly import Nearly, nearly
from kuangchao_operator.layers.strategy.search.possible import possible
from kuangchao_operator.layers.strategy.search.trial import Trial
from kuangchao_operator.layers.strategy.search.words import label
from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.values import around

MOST_BATCHES: Final = 32
"""Batches that are tried in place of one with which there is no split."""
MOST_SIZES: Final = 8
"""Sizes of a model, and lengths of a sequence, that are tried."""
NEIGHBOURS: Final = 16
"""Numbers of devices that are tried on either side of one with which there is no split."""
UNFIT: Final = "with which there is a split, though none that fits the memory"
NONE: Final = (
    f"tried were other pins, {NEIGHBOURS} pods more and fewer, and other batches, lengths and sizes of the model, one"
    " at a time: with none is there a split"
)
Does = Callable[[PlanRequest], bool]


def no_layout(tried: Trial) -> Infeasible:
    """The refusal, with the nearest change that would do."""
    space, near = tried.search.space, nearly(tried.search.space)
    way, ending = _way(tried, near)
    field, was = _blamed(tried, near) if way is None else (way.field, way.value)
    sizes = [] if field == "training.globalBatch" else [f"training.globalBatch={space.global_batch}"]
    sizes += [f"{space.model.layers} layers and {space.model.heads} heads"] if space.shaped else []
    has = f" with {', '.join(sizes)}" if sizes else ""
    over = "" if field == "devices.count" else f" over {space.world} devices"
    closest = f"; closest: {', '.join(one.words for one in near)}" if near else ""
    message = (
        f"{field}={written(was)}: no split of the model{over} keeps every law{has} under {_pinned(tried)}{closest};"
        f" {ending}{_together(tried)}"
    )
    return refused(
        reason="ContradictoryPlan",
        field=field,
        value=was,
        nearest=None if way is None else way.nearest,
        message=message,
        rejected=laws.rejected_axes(tried.request),
    )


def _way(tried: Trial, near: Iterable[Nearly]) -> tuple[Way | None, str]:
    """What to change, and words for it."""
    for does, pin, said in (
        (partial(fits, tried), loosened, ""),
        (partial(possible, known=tried.known), kept, f", {UNFIT}"),
    ):
        way = pin(tried) or _changed(tried, near, does)
        if way is not None:
            return way, f"nearest legal {way.words}{said}"
    return None, NONE


def _blamed(tried: Trial, near: Iterable[Nearly]) -> tuple[str, str | None]:
    """Where no change of one field would do: the pin that the closest divisions find wrong, or else the devices."""
    pins = given(tried.request.parallelism)
    name = next((fault.field for one in near for fault in one.broken if fault.field in pins), None)
    if name is None:
        return "devices.count", str(tried.request.devices)
    return f"parallelism.{name}", as_written(pins[name])


def _changed(tried: Trial, near: Iterable[Nearly], does: Does) -> Way | None:
    """A change of something that is no pin: within the pool before beyond it, the job before the model."""
    per_pod = tried.request.per_pod
    most = laws.capacity(tried.request)
    counts = [tried.request.devices + sign * n * per_pod for n in range(1, NEIGHBOURS + 1) for sign in (-1, 1)]
    return (
        _devices(tried, (n for n in counts if 0 < n <= most), does)
        or _other_batch(tried, does)
        or beyond_island(tried, does)
        or _sizes(tried, near, does)
        or _devices(tried, (n for n in counts if most < n <= MOST_COUNT), does)
    )


def _devices(tried: Trial, counts: Iterable[int], does: Does) -> Way | None:
    """The first number of devices that does."""
    request = tried.request
    found = next((count for count in counts if does(resized(tried, count))), None)
    if found is None:
        return None
    inside = str(found) if found <= laws.capacity(request) else None
    words = f"devices.count: {found}{beyond_pool(request, found)}"
    return Way("devices.count", str(request.devices), inside, words)


def _other_batch(tried: Trial, does: Does) -> Way | None:
    """The nearest batch that does, of those that some number of the ranks can share."""
    batch = tried.request.training.global_batch
    shared = {near for size in divisors(tried.request.devices) for near in nearest_multiples(batch, size)}
    near = sorted((one for one in shared - {batch} if one <= MOST_COUNT), key=lambda one: (abs(one - batch), one))
    return _first(tried, "training.globalBatch", islice(near, MOST_BATCHES), does)


def _sizes(tried: Trial, near: Iterable[Nearly], does: Does) -> Way | None:
    """A length of the sequence or a size of the model with which one of the closest divisions keeps the laws."""
    tries = ((field, islice(sizes, MOST_SIZES)) for one in near for field, sizes in _of(tried.request, one))
    return next(filter(None, (_first(tried, field, sizes, does) for field, sizes in tries)), None)


def _of(request: PlanRequest, one: Nearly) -> Iterator[tuple[str, Iterable[int]]]:
    """The fields that a division must divide, each with numbers that it does, the nearest first."""
    model, length = request.model, request.training.sequence_length
    if not isinstance(model, TransformerModel):
        return
    tensor, context = one.sizes.tensor or 1, one.sizes.context or 1
    if length is not None:
        yield "training.sequenceLength", _nearest(length, tensor * 2 * context)
    if model.kv_heads is not None:
        yield "model.kvHeads", sorted(divisors(model.heads), key=lambda n: abs(n - (model.kv_heads or 1)))
    yield "model.ffn", _nearest(model.ffn, tensor)


def _nearest(number: int, unit: int) -> list[int]:
    return sorted(around(number, unit, MOST_COUNT), key=lambda n: (abs(n - number), n))


def _first(tried: Trial, field: str, numbers: Iterable[int], does: Does) -> Way | None:
    request = tried.request
    was = value(request, field)
    found = next((n for n in numbers if n != was and does(changed(request, field, n))), None)
    return None if found is None else Way(field, str(was), str(found), f"{field}: {found}")


def _pinned(tried: Trial) -> str:
    """What the user pinned, in words."""
    wish = tried.request.parallelism
    pins = [f"parallelism.{name}={as_written(value)}" for name, value in sorted(given(wish).items())]
    manual = [f"mode {wish.mode.value}"] if wish.mode is ParallelismMode.MANUAL else []
    return ", ".join([*manual, *pins]) or "no pins"


def _together(tried: Trial) -> str:
    """What the worker would have to carry out together."""
    best = None if tried.request.what_if else tried.again(tried.request.replace(what_if=True)).best()
    found = None if best is None else best.setting
    apart = None if found is None else unbuilt(found, found.recompute)
    return f"; {label(found)} would do, but {apart.why}" if found is not None and apart is not None else ""
