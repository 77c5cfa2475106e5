"""Why nothing fits, by the layout that is closest to it, and what would fit. Pure."""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import Infeasible, ParallelismMode, PlanRequest
from kuangchao_contracts.rules import TaskRule
from kuangchao_contracts.units import human_bytes, least_bytes
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.numbers import divisors, nearest_multiples
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, given, unbuilt
from kuangchao_operator.layers.strategy.search.best import Closest
from kuangchao_operator.layers.strategy.search.loosen import Way, loosened, share_that_fits
from kuangchao_operator.layers.strategy.search.trial import Trial
from kuangchao_operator.layers.strategy.search.words import costs, label
from kuangchao_operator.layers.strategy.shown import as_written

DIVIDES: Final = ("tensor", "pipeline", "sharding")
"""Axes of which more devices hold less each."""
DOUBLINGS: Final = 7
MOST_DEVICES: Final = 1_048_576
"""More than these no request can ask for, nor a pool have nodes."""
BETWEEN: Final = 8
"""Numbers of devices that are tried below the first doubling that fits, and among those of the pool."""
MOST_BATCHES: Final = 32
"""Batches that are tried in place of one with which there is no split."""
NEIGHBOURS: Final = 16
"""Sizes that are tried on either side of one with which there is no split."""
TRIED: Final = f"tried were other pins, {NEIGHBOURS} pods more and fewer, and other batches, one at a time: none does"
MOST_HINTED: Final = 64
"""Devices up to which a refusal names a plan that would fit if the task or the worker could do more."""


def rescue(tried: Trial) -> Infeasible:
    """The refusal of a request of which nothing fits."""
    closest = tried.search.closest
    if closest is None:
        return _no_layout(tried)
    pin = loosened(tried) if tried.request.managed else share_that_fits(tried, closest)
    ways = [way for way in (pin, _devices(tried)) if way is not None]
    ways.append(_device(tried, closest))
    words = "; or ".join(way.words for way in ways)
    memory = tried.memory.stages(closest.setting)
    fullest = max(memory, key=lambda stage: (stage.reserved_bytes, -stage.stage), default=None)
    lines = "; ".join(fullest.arithmetic) if fullest is not None else "no model descriptor"
    head = f"{label(closest.setting)} {tried.memory.refusal(closest.setting)} ({human_bytes(tried.shape.memory_bytes)}"
    return refused(
        reason="Infeasible",
        message=f"{head} device); would fit: {words}. {lines}",
        field=ways[0].field,
        value=ways[0].value,
        nearest=ways[0].nearest,
        memory=memory,
        rejected=laws.rejected_axes(tried.request),
    )


def _best(tried: Trial) -> Setting | None:
    found = next(tried.search.ranked(), None)
    return None if found is None else found.setting


def _devices(tried: Trial) -> Way | None:
    """How many more devices would do; none does where every rank holds the whole model."""
    request = tried.request
    count = None if _whole(tried) else _more(tried)
    if count is None:
        return None
    return Way("devices.count", str(request.devices), str(count), f"{count} devices{_beyond(request, count)}")


def _more(tried: Trial) -> int | None:
    """The fewest of the numbers tried that fit, of those that the pool has if one of them does."""
    request, most = tried.request, laws.capacity(tried.request)
    count = next((count for count in _doubled(request) if _feasible(tried, count)), None)
    if count is None or count > most:
        inside = range(request.devices + request.per_pod, most + 1, request.per_pod)
        held = (fewer for fewer in inside[:: -(-len(inside) // BETWEEN) or 1] if _feasible(tried, fewer))
        found = next(held, None)
        if found is not None or count is None:
            return found
    step = max(request.per_pod, (count - count // 2) // BETWEEN // request.per_pod * request.per_pod)
    below = range(max(count // 2, request.devices) + step, count, step)
    return next((fewer for fewer in below if _feasible(tried, fewer)), count)


def _doubled(request: PlanRequest) -> Iterator[int]:
    counts = (request.devices << doubling for doubling in range(1, DOUBLINGS + 1))
    yield from takewhile(lambda count: count <= MOST_DEVICES, counts)


def _beyond(request: PlanRequest, count: int) -> str:
    """Words for a number of devices that the pool does not have."""
    most = laws.capacity(request)
    return "" if count <= most else f" (the pool has {most} for pods of {request.per_pod})"


def _feasible(tried: Trial, devices: int) -> bool:
    """Whether something fits on so many devices: those of the pool, or were there as many of the same kind."""
    shapes = tried.request.shapes
    if devices > laws.capacity(tried.request):
        nodes = min(MOST_DEVICES, -(-devices // tried.shape.per_node) * 2)
        shapes = (tried.shape.replace(nodes=nodes),)
    parallelism = tried.request.parallelism.replace(objective=Objective.TIME)
    return _fits(tried, tried.request.replace(devices=devices, shapes=shapes, parallelism=parallelism))


def _fits(tried: Trial, wish: PlanRequest) -> bool:
    return laws.lawful(wish) and tried.again(wish).search.feasible()


def _device(tried: Trial, closest: Closest) -> Way:
    """The memory of a device that would do."""
    evidence = tried.evidence
    need = max(closest.need, evidence.measured_bytes + 1 if evidence is not None else 0)
    size = least_bytes(device_bytes_for(need, tried.search.space.backend, tried.known.calibration))
    words = f"a device with {size} or more, a smaller model, or a smaller training.sequenceLength"
    if _whole(tried):
        manual = tried.request.parallelism.mode is ParallelismMode.MANUAL
        pinned = "1 and none, which mode Manual takes where nothing is given" if manual else "pinned to 1 and none"
        why = next(filter(None, map(tried.closed, DIVIDES)), pinned)
        words += "; more devices do not help, since every data-parallel rank holds the whole model (parallelism.tensor,"
        words += f" pipeline, sharding: {why})"
    words += _hint(tried) if any(map(tried.closed, DIVIDES)) else ""
    return Way("deviceMemory", human_bytes(tried.shape.memory_bytes), size, words)


def _whole(tried: Trial) -> bool:
    """Whether every rank holds the whole model, whatever is chosen."""
    pins = tried.search.space.pins
    return all(pins.get(name) == NEUTRAL[name] for name in DIVIDES)


def _hint(tried: Trial) -> str:
    """What could be done if the task had all rules, or the worker ran every axis.

    For a few devices only, since a job's answer must be quick.
    """
    request, parallelism = tried.request, tried.request.parallelism
    if not request.managed or request.devices > MOST_HINTED or not tried.search.space.shaped:
        return ""
    ruled = request.replace(parallelism=parallelism.replace(task_rules=tuple(TaskRule)))
    would = {
        "; if the task has rules for it (parallelism.taskRules), this fits": ruled,
        "; a what-if plan that fits": request.replace(what_if=True),
    }
    for words, wish in would.items():
        best = next(tried.again(wish).search.ranked(), None)
        if best is not None:
            return f"{words}: {label(best.setting)} ({costs(best, tried.search.space.budget)})"
    return "; nor would it fit if the worker could split the model over these devices"


def _no_layout(tried: Trial) -> Infeasible:
    """Pins that no single law forbids and that still leave no way to use every rank."""
    space = tried.search.space
    way = loosened(tried) or _other_size(tried) or _other_batch(tried)
    ending = f"nearest legal {way.words}" if way is not None else TRIED
    message = (
        f"devices.count={space.world}: no split of the model keeps every law with training.globalBatch="
        f"{space.global_batch}, {space.model.layers} layers and {space.model.heads} heads under {_pinned(tried)};"
        f" {ending}{_together(tried)}"
    )
    return refused(
        reason="ContradictoryPlan",
        field="devices.count" if way is None else way.field,
        value=str(space.world) if way is None else way.value,
        nearest=None if way is None else way.nearest,
        message=message,
        rejected=laws.rejected_axes(tried.request),
    )


def _pinned(tried: Trial) -> str:
    """What the user pinned, in words."""
    wish = tried.request.parallelism
    pins = [f"parallelism.{name}={as_written(value)}" for name, value in sorted(given(wish).items())]
    manual = [f"mode {wish.mode.value}"] if wish.mode is ParallelismMode.MANUAL else []
    return ", ".join([*manual, *pins]) or "no pins"


def _together(tried: Trial) -> str:
    """What the worker would have to carry out together."""
    found = None if tried.request.what_if else _best(tried.again(tried.request.replace(what_if=True)))
    apart = None if found is None else unbuilt(found, found.recompute)
    return f"; {label(found)} would do, but {apart.why}" if found is not None and apart is not None else ""


def _other_size(tried: Trial) -> Way | None:
    """The number of devices next to the one asked for with which something fits, of those that the pool has if any."""
    request, most = tried.request, laws.capacity(tried.request)
    count, per_pod = request.devices, request.per_pod
    nearby = [count + sign * number * per_pod for number in range(1, NEIGHBOURS + 1) for sign in (-1, 1)]
    legal = sorted((near for near in nearby if 0 < near <= MOST_DEVICES), key=lambda near: near > most)
    found = next((near for near in legal if _feasible(tried, near)), None)
    if found is None:
        return None
    return Way("devices.count", str(count), str(found), f"devices.count: {found}{_beyond(request, found)}")


def _other_batch(tried: Trial) -> Way | None:
    """The batch next to the one asked for, of those that some number of the ranks can share, with which something
    fits."""
    training = tried.request.training
    batch = training.global_batch
    shared = {near for size in divisors(tried.request.devices) for near in nearest_multiples(batch, size)}
    near = sorted((one for one in shared - {batch} if one <= MOST_DEVICES), key=lambda one: (abs(one - batch), one))
    wishes = ((one, tried.request.replace(training=training.replace(global_batch=one))) for one in near)
    found = next((one for one, wish in islice(wishes, MOST_BATCHES) if _fits(tried, wish)), None)
    return (
        None if found is None else Way("training.globalBatch", str(batch), str(found), f"training.globalBatch: {found}")
    )
