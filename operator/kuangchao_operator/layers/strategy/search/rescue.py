"""Why nothing fits, by the layout that is closest to it, and what would fit. Pure."""

from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Final

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.plan import Infeasible, ParallelismMode, PlanRequest
from kuangchao_contracts.rules import TaskRule
from kuangchao_contracts.units import human_bytes, hundredths, least_bytes, most_bytes
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.runnable import NEUTRAL
from kuangchao_operator.layers.strategy.search.best import Closest
from kuangchao_operator.layers.strategy.search.loosen import (
    Way,
    beyond_island,
    beyond_pool,
    fits,
    loosened,
    resized,
    share_that_fits,
)
from kuangchao_operator.layers.strategy.search.nolayout import no_layout
from kuangchao_operator.layers.strategy.search.trial import Trial
from kuangchao_operator.layers.strategy.search.words import costs, label

DIVIDES: Final = ("tensor", "pipeline", "sharding")
"""Axes of which more devices hold less each."""
DOUBLINGS: Final = 7
BETWEEN: Final = 8
"""Numbers of devices that are tried below the first doubling that fits, and among those of the pool."""
MOST_HINTED: Final = 64
"""Devices up to which a refusal names a plan that would fit if the task or the worker could do more."""


def rescue(tried: Trial) -> Infeasible:
    """The refusal of a request of which nothing fits."""
    closest = tried.search.closest
    if closest is None:
        return no_layout(tried)
    pin = loosened(tried) if tried.request.managed else share_that_fits(tried, closest)
    wide = None if pin is not None else beyond_island(tried, partial(fits, tried))
    ways = [way for way in (pin, wide, _devices(tried)) if way is not None]
    ways.append(_device(tried, closest))
    words = "; or ".join(way.words for way in ways)
    memory = tried.memory.stages(closest.setting)
    fullest = max(memory, key=lambda stage: (stage.reserved_bytes, -stage.stage), default=None)
    lines = "; ".join(fullest.arithmetic) if fullest is not None else "no model descriptor"
    head = f"{label(closest.setting)} {_needs(tried, closest)} ({human_bytes(tried.shape.memory_bytes)}"
    return refused(
        reason="Infeasible",
        message=f"{head} device); would fit: {words}. {lines}",
        field=ways[0].field,
        value=ways[0].value,
        nearest=ways[0].nearest,
        memory=memory,
        rejected=laws.rejected_axes(tried.request),
    )


def _needs(tried: Trial, closest: Closest) -> str:
    """What the closest needs, with a digit more than the lines that add up to it, so that rounding sets none apart."""
    budget = tried.search.space.budget
    if tried.evidence is not None or budget is None:
        return tried.memory.refusal(closest.setting)
    return f"needs {hundredths(closest.need)} of {most_bytes(budget)} usable"


def _devices(tried: Trial) -> Way | None:
    """How many more devices would do; none does where every rank holds the whole model."""
    request = tried.request
    count = None if _whole(tried) else _more(tried)
    if count is None:
        return None
    inside = str(count) if count <= laws.capacity(request) else None
    return Way("devices.count", str(request.devices), inside, f"{count} devices{beyond_pool(request, count)}")


def _more(tried: Trial) -> int | None:
    """The fewest of the numbers tried that fit, of those that the pool has if one of them does."""
    request, most = tried.request, laws.capacity(tried.request)
    count = next((count for count in _doubled(request) if fits(tried, resized(tried, count))), None)
    if count is None or count > most:
        inside = range(request.devices + request.per_pod, most + 1, request.per_pod)
        held = (fewer for fewer in inside[:: -(-len(inside) // BETWEEN) or 1] if fits(tried, resized(tried, fewer)))
        found = next(held, None)
        if found is not None or count is None:
            return found
    step = max(request.per_pod, (count - count // 2) // BETWEEN // request.per_pod * request.per_pod)
    below = range(max(count // 2, request.devices) + step, count, step)
    return next((fewer for fewer in below if fits(tried, resized(tried, fewer))), count)


def _doubled(request: PlanRequest) -> Iterator[int]:
    counts = (request.devices << doubling for doubling in range(1, DOUBLINGS + 1))
    yield from takewhile(lambda count: count <= MOST_COUNT, counts)


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
        best = tried.again(wish).best()
        if best is not None:
            return f"{words}: {label(best.setting)} ({costs(best, tried.search.space.budget)})"
    return "; nor would it fit if the worker could split the model over these devices"
