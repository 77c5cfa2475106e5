"""Laws that a request must satisfy before anything is costed; each names the field, value and nearest legal one.

Pure. A law returns the Infeasible it finds, or None.
"""

from collections.abc import Callable
from math import isqrt

from kuangchao_contracts.plan import (
    DeviceShape,
    Infeasible,
    Parallelism,
    ParallelismMode,
    PlanRequest,
    Precision,
    Recompute,
    RejectedAxis,
    Sharding,
    StageMemory,
    TransformerModel,
)

NOT_BUILT = "not built yet: only data parallel"
LAYOUT_ONLY = "a command lays out its own processes: only data parallel"

_NEUTRAL: dict[str, object] = {
    "tensor": 1,
    "pipeline": 1,
    "context": 1,
    "expert": 1,
    "virtualStages": 1,
    "sequence": False,
    "recompute": Recompute.NONE,
    "sharding": Sharding.NONE,
}
"""Fields of `parallelism` that have one legal value as yet."""

_NOT_BUILT_PRECISIONS = {
    Precision.FP16: "does not scale gradients",
    Precision.BF16_PURE: "keeps parameters in fp32",
    Precision.FP16_PURE: "keeps parameters in fp32",
    Precision.FP8: "has no fp8 kernels",
}

Law = Callable[[PlanRequest], Infeasible | None]


def violated(request: PlanRequest) -> Infeasible | None:
    """The first law that the request breaks."""
    return next((found for law in LAWS if (found := law(request)) is not None), None)


def rejected_axes(request: PlanRequest) -> tuple[RejectedAxis, ...]:
    """Every axis that no plan uses yet, with the one reason."""
    reason = NOT_BUILT if request.managed else LAYOUT_ONLY
    return tuple(RejectedAxis(axis=name, reason=reason) for name in _NEUTRAL)


def hosts(request: PlanRequest) -> tuple[DeviceShape, ...]:
    """Shapes whose nodes can hold at least one pod."""
    return tuple(shape for shape in request.shapes if shape.per_node >= request.per_pod)


def capacity(request: PlanRequest) -> int:
    """Devices that whole pods can use in the pool when it is empty."""
    return sum(shape.per_node // request.per_pod * request.per_pod * shape.nodes for shape in request.shapes)


def pinned_data(parallelism: Parallelism) -> int | None:
    """The data-parallel size that the user asked for; Manual without one means 1."""
    if parallelism.data is None and parallelism.mode is ParallelismMode.MANUAL:
        return 1
    return parallelism.data


def pinned_micro_batch(parallelism: Parallelism) -> int | None:
    """The micro-batch that the user asked for; Manual without one means 1."""
    if parallelism.micro_batch is None and parallelism.mode is ParallelismMode.MANUAL:
        return 1
    return parallelism.micro_batch


def nearest_multiples(value: int, base: int) -> tuple[int, ...]:
    """Multiples of `base` next to `value`, lower one first; only positive ones."""
    below = value // base * base
    return tuple(multiple for multiple in (below, below + base) if multiple > 0)


def divisors(value: int) -> tuple[int, ...]:
    """All divisors, largest first."""
    small = [n for n in range(1, isqrt(value) + 1) if value % n == 0]
    return tuple(sorted({*small, *(value // n for n in small)}, reverse=True))


def nearest_divisors(value: int, wanted: int) -> tuple[int, ...]:
    """Divisors of `value` next to `wanted`, lower one first."""
    below = max(n for n in divisors(value) if n <= wanted)
    above = [n for n in divisors(value) if n > wanted]
    return (below, *above[-1:])


def either(values: tuple[int, ...]) -> str:
    """Numbers for people: "28 or 32"."""
    return " or ".join(str(value) for value in values)


def _axes_built(request: PlanRequest) -> Infeasible | None:
    wire = request.parallelism.wire()
    for name, neutral in _NEUTRAL.items():
        value = wire.get(name, neutral)
        if value != neutral:
            reason = NOT_BUILT if request.managed else LAYOUT_ONLY
            shown = _shown(value)
            return Infeasible(
                reason="Infeasible",
                field=f"parallelism.{name}",
                value=shown,
                nearest=_shown(neutral),
                message=f"parallelism.{name}={shown}: {reason}; nearest legal value: {_shown(neutral)}",
                rejected=rejected_axes(request),
            )
    return None


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole_pods(request: PlanRequest) -> Infeasible | None:
    count, per_pod = request.devices, request.per_pod
    if count % per_pod == 0:
        return None
    near = either(nearest_multiples(count, per_pod))
    return Infeasible(
        reason="ContradictoryPlan",
        field="devices.count",
        value=str(count),
        nearest=near,
        message=f"devices.count={count} is not a multiple of devices.perPod={per_pod};"
        f" nearest legal devices.count: {near}",
    )


def _pool_has_devices(request: PlanRequest) -> Infeasible | None:
    if request.shapes:
        return None
    return Infeasible(
        reason="Infeasible",
        field="devices.count",
        value=str(request.devices),
        nearest="0",
        message=f"devices.count={request.devices}: the pool has no devices of the kind asked for",
    )


def _pod_fits_node(request: PlanRequest) -> Infeasible | None:
    largest = max(shape.per_node for shape in request.shapes)
    if request.per_pod <= largest:
        return None
    return Infeasible(
        reason="Infeasible",
        field="devices.perPod",
        value=str(request.per_pod),
        nearest=str(largest),
        message=f"devices.perPod={request.per_pod} exceeds the {largest} devices per node (perNode) of the largest"
        f" node in the pool, and a pod cannot span nodes; nearest legal devices.perPod: {largest}",
    )


def _gang_fits_pool(request: PlanRequest) -> Infeasible | None:
    limit = capacity(request)
    if request.devices <= limit:
        return None
    return Infeasible(
        reason="Infeasible",
        field="devices.count",
        value=str(request.devices),
        nearest=str(limit),
        message=f"devices.count={request.devices} exceeds the {limit} devices that pods of {request.per_pod} can use"
        f" in the empty pool; nearest legal devices.count: {limit}",
    )


def _data_is_world(request: PlanRequest) -> Infeasible | None:
    data, count = pinned_data(request.parallelism), request.devices
    if data is None or data == count:
        return None
    manual = " (Manual: what is not given is 1)" if request.parallelism.data is None else ""
    return Infeasible(
        reason="ContradictoryPlan",
        field="parallelism.data",
        value=str(data),
        nearest=str(count),
        message=f"parallelism.data={data}{manual} contradicts devices.count={count}: the product of all axes must be"
        f" the number of devices; nearest legal parallelism.data: {count}",
    )


def _batch_divides(request: PlanRequest) -> Infeasible | None:
    batch, ranks = request.training.global_batch, request.devices
    if not request.managed or batch % ranks == 0:
        return None
    near = either(nearest_multiples(batch, ranks))
    fitting = either(nearest_divisors(batch, ranks))
    return Infeasible(
        reason="Infeasible",
        field="training.globalBatch",
        value=str(batch),
        nearest=near,
        message=f"training.globalBatch={batch} cannot be split evenly over {ranks} data-parallel ranks"
        f" (devices.count={ranks}), and the batch is never changed silently; nearest legal"
        f" training.globalBatch: {near}; or devices.count: {fitting}",
    )


def _micro_divides(request: PlanRequest) -> Infeasible | None:
    micro = pinned_micro_batch(request.parallelism)
    batch, ranks = request.training.global_batch, request.devices
    if not request.managed or micro is None or (batch // ranks) % micro == 0:
        return None
    near = either(nearest_divisors(batch // ranks, micro))
    return Infeasible(
        reason="ContradictoryPlan",
        field="parallelism.microBatch",
        value=str(micro),
        nearest=near,
        message=f"parallelism.microBatch={micro} contradicts training.globalBatch={batch}: microBatch x {ranks} ranks x"
        f" accumulation steps must be globalBatch; nearest legal parallelism.microBatch: {near}",
    )


def _sequence_known(request: PlanRequest) -> Infeasible | None:
    if not isinstance(request.model, TransformerModel) or request.training.sequence_length is not None:
        return None
    return Infeasible(
        reason="InvalidSpec",
        field="training.sequenceLength",
        message="training.sequenceLength is not set: the activations of a transformer cannot be estimated without it",
    )


def _heads_divide(request: PlanRequest) -> Infeasible | None:
    model = request.model
    if not isinstance(model, TransformerModel) or model.head_dim is not None or model.latent_attention is not None:
        return None
    if model.hidden % model.heads == 0:
        return None
    near = either(nearest_divisors(model.hidden, model.heads))
    return Infeasible(
        reason="InvalidSpec",
        field="model.heads",
        value=str(model.heads),
        nearest=near,
        message=f"model.heads={model.heads} does not divide model.hidden={model.hidden} and model.headDim is not set;"
        f" nearest legal model.heads: {near}",
    )


def _parts_within_whole(request: PlanRequest) -> Infeasible | None:
    """A token cannot visit more experts than there are, nor can more layers be frozen or plain than there are."""
    model = request.model
    if not isinstance(model, TransformerModel):
        return None
    bounds = [("frozenLayers", model.frozen_layers, "layers", model.layers)]
    if model.experts is not None:
        bounds += [
            ("experts.perToken", model.experts.per_token, "experts.count", model.experts.count),
            ("experts.denseLayers", model.experts.dense_layers, "layers", model.layers),
        ]
    for name, part, whole_name, whole in bounds:
        if part > whole:
            return Infeasible(
                reason="InvalidSpec",
                field=f"model.{name}",
                value=str(part),
                nearest=str(whole),
                message=f"model.{name}={part} is more than model.{whole_name}={whole}; nearest legal model.{name}:"
                f" {whole}",
            )
    return None


def precision_not_built(request: PlanRequest, memory: tuple[StageMemory, ...]) -> Infeasible | None:
    """The one law that is judged after the memory: what such a precision would need is worth knowing even so."""
    precision = request.training.precision
    if not request.managed or precision not in _NOT_BUILT_PRECISIONS:
        return None
    return Infeasible(
        reason="Infeasible",
        field="training.precision",
        value=precision.value,
        nearest="bf16",
        memory=memory,
        rejected=rejected_axes(request),
        message=f"training.precision={precision.value}: not built yet, the executor {_NOT_BUILT_PRECISIONS[precision]};"
        " nearest legal training.precision: bf16",
    )


LAWS: tuple[Law, ...] = (
    _axes_built,
    _whole_pods,
    _pool_has_devices,
    _pod_fits_node,
    _gang_fits_pool,
    _data_is_world,
    _batch_divides,
    _micro_divides,
    _sequence_known,
    _heads_divide,
    _parts_within_whole,
)
"""In the order in which a person would want to hear of them."""
