"""The planner: a pure function from a request to a plan, or to the reason why there is none.

Data parallelism as yet: the search runs over the micro-batch, the rest of the global batch is accumulated. Equal
requests give equal bytes. It never changes what the user wants to train.
"""

from kuangchao_contracts.plan import (
    Alternative,
    Axis,
    AxisGroups,
    DeviceShape,
    Infeasible,
    ParallelPlan,
    PlanOutcome,
    PlanRequest,
    StageMemory,
)
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy import laws, memory
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.memory import Evidence
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.pins import pinned_micro_batch
from kuangchao_operator.layers.strategy.runnable import NOT_BUILT

MAX_ALTERNATIVES = 4


def plan(request: PlanRequest, known: Knowledge) -> PlanOutcome:  # noqa: ARG001 - until the search rests on it
    """The plan, or why there is none. `measured_peak_bytes` is the peak of the plan made without it."""
    if request.measured_peak_bytes is None:
        return _search(request, None)
    first = _search(request.replace(measured_peak_bytes=None), None).plan
    return _search(request, _evidence(first, request)) if first is not None else _search(request, None)


def replan(previous: ParallelPlan, request: PlanRequest, known: Knowledge) -> PlanOutcome:  # noqa: ARG001 - as above
    """A plan that needs less than `previous`, which was seen not to fit."""
    return _search(request, _evidence(previous, request))


def _evidence(previous: ParallelPlan, request: PlanRequest) -> Evidence:
    estimated = max((stage.total_bytes for stage in previous.memory), default=0)
    return Evidence(
        micro_batch=previous.micro_batch, estimated_bytes=estimated, measured_bytes=request.measured_peak_bytes or 0
    )


def _search(request: PlanRequest, evidence: Evidence | None) -> PlanOutcome:
    broken = laws.violated(request)
    if broken is not None:
        return PlanOutcome(infeasible=broken)
    shape = _tightest(laws.hosts(request))
    tried: list[tuple[int, StageMemory | None]] = []
    for micro in _candidates(request):
        need = _need(request, shape, micro, evidence)
        tried.append((micro, need))
        if _fits(need, shape) and (evidence is None or micro < evidence.micro_batch):
            refused = laws.precision_not_built(request, (need,) if need is not None else ())
            if refused is not None:
                return PlanOutcome(infeasible=refused)
            return PlanOutcome(plan=_plan(request, shape, micro, need, _lost(request, shape, tried[:-1], evidence)))
    return PlanOutcome(infeasible=_does_not_fit(request, shape, *tried[-1], evidence))


def _tightest(shapes: tuple[DeviceShape, ...]) -> DeviceShape:
    """The class of device with the least memory: the scheduler may put a pod on any of them."""
    return min(shapes, key=lambda shape: (memory.usable_bytes(shape), shape.model, shape.per_node, shape.nodes))


def _candidates(request: PlanRequest) -> tuple[int, ...]:
    """Micro-batches to try, best first: as large as possible, since each accumulation step costs a pass."""
    pinned = pinned_micro_batch(request.parallelism)
    if pinned is not None:
        return (pinned,)
    # rounded up where the user's own script splits the batch, so that the estimate is that of the fullest rank
    share = -(-request.training.global_batch // request.devices)
    return divisors(share) if request.managed else (share,)


def _need(request: PlanRequest, shape: DeviceShape, micro: int, evidence: Evidence | None) -> StageMemory | None:
    if request.model is None or shape.memory_bytes == 0:
        return None
    return memory.estimate(request.model, request.training, shape, request.devices, micro, evidence)


def _fits(need: StageMemory | None, shape: DeviceShape) -> bool:
    return need is None or need.reserved_bytes <= memory.usable_bytes(shape)


def _plan(
    request: PlanRequest, shape: DeviceShape, micro: int, need: StageMemory | None, lost: tuple[Alternative, ...]
) -> ParallelPlan:
    ranks, batch = request.devices, request.training.global_batch
    return ParallelPlan(
        world_size=ranks,
        per_pod=request.per_pod,
        pods=ranks // request.per_pod,
        data=ranks,
        micro_batch=micro,
        accumulation_steps=batch // (ranks * micro) if request.managed else 1,
        global_batch=batch,
        managed=request.managed,
        groups=(AxisGroups(axis=Axis.DATA, size=ranks, stride=1),),
        memory_checked=need is not None,
        memory=(need,) if need is not None else (),
        device_memory_bytes=shape.memory_bytes,
        alternatives=lost,
        rejected=laws.rejected_axes(request),
        request_digest=request.content_hash(),
    )


def _lost(
    request: PlanRequest, shape: DeviceShape, tried: list[tuple[int, StageMemory | None]], evidence: Evidence | None
) -> tuple[Alternative, ...]:
    """The larger micro-batches nearest to the chosen one, and why each was passed over."""
    return tuple(
        Alternative(summary=f"dp{request.devices} micro-batch {micro}", reason=_why_not(micro, need, shape, evidence))
        for micro, need in tried[-MAX_ALTERNATIVES:]
    )


def _why_not(micro: int, need: StageMemory | None, shape: DeviceShape, evidence: Evidence | None) -> str:
    if evidence is not None and micro >= evidence.micro_batch:
        return (
            f"micro-batch {evidence.micro_batch} ran out of memory: measured peak"
            f" {human_bytes(evidence.measured_bytes)} of {human_bytes(shape.memory_bytes)}"
        )
    reserved = need.reserved_bytes if need is not None else 0
    peak = f" with the measured peak {human_bytes(evidence.measured_bytes)}" if evidence is not None else ""
    return (
        f"needs {human_bytes(reserved)}{peak} of {human_bytes(memory.usable_bytes(shape))} usable"
        f" ({human_bytes(shape.memory_bytes)} device)"
    )


def _does_not_fit(
    request: PlanRequest, shape: DeviceShape, micro: int, need: StageMemory | None, evidence: Evidence | None
) -> Infeasible:
    why = _why_not(micro, need, shape, evidence)
    given = pinned_micro_batch(request.parallelism) is not None or not request.managed
    smaller = _fitting_micro(request, shape, evidence) if given else None
    if smaller is not None:
        field, value, nearest = "parallelism.microBatch", str(micro), str(smaller)
        remedy = f"would fit: parallelism.microBatch {smaller}"
    else:
        floor = max(need.reserved_bytes if need else 0, evidence.measured_bytes + 1 if evidence else 0)
        nearest = human_bytes(memory.device_bytes_for(floor))
        field, value = "deviceMemory", human_bytes(shape.memory_bytes)
        remedy = (
            f"would fit: a device with {nearest} or more, a smaller model, or a smaller"
            f" training.sequenceLength; more devices do not help, since every data-parallel rank holds the whole"
            f" model ({NOT_BUILT})"
        )
    lines = "; ".join(need.arithmetic) if need is not None else "no model descriptor"
    message = f"micro-batch {micro} {why}; {remedy}. {lines}"
    return Infeasible(
        reason="Infeasible",
        message=message[:1024],
        field=field,
        value=value,
        nearest=nearest,
        memory=(need,) if need is not None else (),
        rejected=laws.rejected_axes(request),
    )


def _fitting_micro(request: PlanRequest, shape: DeviceShape, evidence: Evidence | None) -> int | None:
    """The largest micro-batch that would fit if it were the planner's to choose."""
    for micro in divisors(max(1, request.training.global_batch // request.devices)):
        below = evidence is None or micro < evidence.micro_batch
        if below and _fits(_need(request, shape, micro, evidence), shape):
            return micro
    return None
