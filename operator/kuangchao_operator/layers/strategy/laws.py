"""Laws that a request must satisfy before anything is costed; a refusal names the field, value and nearest legal one.

Here are those of pods, pools, models and of what workers run; what a user pinned is judged by the laws of layouts
(`legality`), as far as it says enough. Pure.
"""

import re
from collections.abc import Callable, Iterator

from kuangchao_contracts.plan import DeviceShape, Infeasible, PlanRequest, RejectedAxis
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy import modellaws
from kuangchao_operator.layers.strategy.modellaws import ACROSS
from kuangchao_operator.layers.strategy.nearest import mended
from kuangchao_operator.layers.strategy.pins import layout_faults
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.rewrite import asked
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, RUNNABLE, closed_reason, open_axes
from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.sizes import Broken

Law = Callable[[PlanRequest], Broken | None]


def violated(request: PlanRequest, possible: Callable[[PlanRequest], bool] = lambda _: True) -> Infeasible | None:
    """The first law that the request breaks, with the nearest legal value.

    `possible` says whether any layout of a request that breaks no law keeps those of layouts: for whoever can search.
    """
    found = next(faults(request), None)
    if found is None:
        return None
    way = mended(found, asked(request, faults, possible))
    closed = found.field.removeprefix("parallelism.") in NEUTRAL.keys() - open_axes(request)
    return refused(
        reason="Infeasible" if way.field == "training.globalBatch" else found.reason,
        field=way.field,
        value=None if way.value == "none" else str(way.value),
        nearest=way.nearest,
        message=way.message,
        rejected=rejected_axes(request) if closed else (),
    )


def lawful(request: PlanRequest) -> bool:
    """Whether a request breaks no law: the same for those who need no words."""
    return next(faults(request), None) is None


def faults(request: PlanRequest) -> Iterator[Broken]:
    """Every law that the request breaks, without nearest values."""
    yield from (found for law in LAWS if (found := law(request)) is not None)
    yield from layout_faults(request, frozenset(RUNNABLE) if mixed(request) else open_axes(request))


def rejected_axes(request: PlanRequest) -> tuple[RejectedAxis, ...]:
    """Every axis that is closed to this request, each with its reason."""
    closed = (name for name in NEUTRAL if name not in open_axes(request))
    return tuple(RejectedAxis(axis=name, reason=closed_reason(request, name)) for name in closed)


def hosts(request: PlanRequest) -> tuple[DeviceShape, ...]:
    """Shapes whose nodes can hold at least one pod."""
    return tuple(shape for shape in request.shapes if shape.per_node >= request.per_pod)


def capacity(request: PlanRequest) -> int:
    """Devices that whole pods can use in the pool when it is empty."""
    return sum(shape.per_node // request.per_pod * request.per_pod * shape.nodes for shape in request.shapes)


def mixed(request: PlanRequest) -> str:
    """Why ranks of one job should not wait for each other inside a layer: GPUs of several kinds. "" for one kind."""
    kinds = sorted({(shape.model, shape.memory_bytes) for shape in hosts(request) if shape.kind == "gpu"})
    if len(kinds) < 2:
        return ""
    named = ", ".join(f"{model or 'GPU'} ({human_bytes(memory)})" for model, memory in kinds)
    return f"the pool mixes {named}: ranks of one group would not be equal"


def _axes_open(request: PlanRequest) -> Broken | None:
    wire, opened = request.parallelism.wire(), open_axes(request)
    for name, neutral in NEUTRAL.items():
        value = wire.get(name, neutral)
        if name not in opened and value not in (neutral, []):
            shown = as_written(value)
            why = f"parallelism.{name}={shown}: {closed_reason(request)}"
            number = value if isinstance(value, int) else shown
            return Broken(f"parallelism.{name}", number, why, reason="Infeasible")
    return None


def _whole_pods(request: PlanRequest) -> Broken | None:
    count, per_pod = request.devices, request.per_pod
    if count % per_pod == 0:
        return None
    return Broken(
        "devices.count",
        count,
        f"devices.count={count} is not a multiple of devices.perPod={per_pod}",
        ("devices.perPod",),
    )


def _pool_has_devices(request: PlanRequest) -> Broken | None:
    if request.shapes:
        return None
    why = f"devices.count={request.devices}: the pool has no devices of the kind asked for; no number is legal"
    return Broken("devices.count", request.devices, why, reason="Infeasible")


def _pod_fits_node(request: PlanRequest) -> Broken | None:
    largest = max((shape.per_node for shape in request.shapes), default=request.per_pod)
    if request.per_pod <= largest:
        return None
    return Broken(
        "devices.perPod",
        request.per_pod,
        f"devices.perPod={request.per_pod} exceeds the {largest} devices per node (perNode) of the largest"
        " node in the pool, and a pod cannot span nodes",
        reason="Infeasible",
    )


def _gang_fits_pool(request: PlanRequest) -> Broken | None:
    limit = capacity(request)
    if request.devices <= limit:
        return None
    return Broken(
        "devices.count",
        request.devices,
        f"devices.count={request.devices} exceeds the {limit} devices that pods of {request.per_pod} can use"
        " in the empty pool",
        reason="Infeasible",
    )


def _whole_devices(request: PlanRequest) -> Broken | None:
    """MIG slices of one GPU or of several cannot reach each other, so no group can be made of them."""
    slices = [shape for shape in hosts(request) if re.search(r"\bMIG\b", shape.model)]
    if not slices or request.devices == 1:
        return None
    named = ", ".join(sorted({shape.model for shape in slices}))
    return Broken(
        "devices.count",
        request.devices,
        f"devices.count={request.devices}: the pool has MIG slices ({named}), and slices cannot form a group of ranks",
        hint="a pool of whole GPUs",
        reason="Infeasible",
    )


def _equal_devices(request: PlanRequest) -> Broken | None:
    """GPUs of several kinds share a job only where no rank waits for another inside a layer."""
    why, wire = mixed(request), request.parallelism.wire()
    axis = next((name for name in ACROSS if wire.get(name, 1) > 1), None)
    if not why or axis is None:
        return None
    field, size = f"parallelism.{axis}", wire[axis]
    return Broken(field, size, f"{field}={size}: {why}", hint="a pool of one kind", reason="Infeasible")


LAWS: tuple[Law, ...] = (
    _axes_open,
    _pool_has_devices,
    _pod_fits_node,
    _whole_pods,
    _gang_fits_pool,
    _whole_devices,
    _equal_devices,
    *modellaws.LAWS,
)
"""In the order in which a person would want to hear of them; those of layouts come after them."""
