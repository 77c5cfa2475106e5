"""Peak memory of one device, by component, with the calculation spelled out.

Pure integer arithmetic, so that the same request gives the same bytes on every machine. Data parallelism only: every
rank holds the whole model (see `laws.py` for what is refused).
"""

from kuangchao_contracts.base import Contract
from kuangchao_contracts.plan import (
    DeviceShape,
    MeasuredModel,
    ModelDescriptor,
    StageMemory,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy import constants as k
from kuangchao_operator.layers.strategy.footprint import parameters as counting


class Evidence(Contract):
    """A plan that did not fit: its micro-batch, what was estimated for it and the peak that was measured."""

    micro_batch: int
    estimated_bytes: int
    measured_bytes: int

    @property
    def excess(self) -> int:
        """Bytes by which the estimate was too low."""
        return max(0, self.measured_bytes - self.estimated_bytes)


class Component(Contract):
    """Bytes of one component and the line that shows how they came about."""

    size: int
    line: str


def parameter_count(model: ModelDescriptor) -> int:
    """Parameters of a model, without padding of the vocabulary."""
    return model.parameters if isinstance(model, MeasuredModel) else counting.count(model)


def trainable_count(model: ModelDescriptor) -> int:
    """Parameters that have a gradient and optimizer states."""
    if isinstance(model, TransformerModel):
        return counting.trainable_count(model)
    return model.parameters if model.trainable_parameters is None else min(model.trainable_parameters, model.parameters)


def estimate(
    model: ModelDescriptor,
    training: TrainingSpec,
    shape: DeviceShape,
    data: int,
    micro_batch: int,
    evidence: Evidence | None = None,
) -> StageMemory:
    """Peak of one rank of a data-parallel plan. Never falls when `micro_batch` rises."""
    parameters = _parameters(model, training)
    gradients = _gradients(model, training)
    optimizer = _optimizer(model, training)
    activations = _activations(model, training, micro_batch)
    buckets = gradients.size if data > 1 else 0
    snapshot = parameters.size + optimizer.size if shape.kind == "cpu" else 0
    other = _other(model, training, shape, {"gradient buckets of DDP": buckets, "snapshot for a checkpoint": snapshot})
    lines = [c.line for c in (parameters, gradients, optimizer, activations, other)]
    extra = _excess(evidence, micro_batch, scales=activations.size > 0)
    if extra is not None:
        lines.append(extra.line)
    in_activations = extra.size if extra is not None and activations.size > 0 else 0
    in_other = extra.size - in_activations if extra is not None else 0
    total = sum(c.size for c in (parameters, gradients, optimizer, activations, other)) + in_activations + in_other
    reserved = reserved_bytes(total, shape)
    lines.append(
        f"total: {human_bytes(total)}; reserved by the allocator: {human_bytes(runtime_bytes(shape))}"
        f" + {k.RESERVED_PERCENT[shape.kind]} % of the rest = {human_bytes(reserved)}"
    )
    return StageMemory(
        stage=0,
        parameters_bytes=parameters.size,
        gradients_bytes=gradients.size,
        optimizer_bytes=optimizer.size,
        activations_bytes=activations.size + in_activations,
        other_bytes=other.size + in_other,
        total_bytes=total,
        reserved_bytes=reserved,
        arithmetic=tuple(lines),
    )


def runtime_bytes(shape: DeviceShape) -> int:
    """What a rank takes before it has a model."""
    return k.RUNTIME_BYTES[shape.kind]


def reserved_bytes(total: int, shape: DeviceShape) -> int:
    """What the allocator takes from the device for `total` bytes in use, rounded up."""
    runtime = runtime_bytes(shape)
    return runtime - (-(total - runtime) * k.RESERVED_PERCENT[shape.kind] // 100)


def usable_bytes(shape: DeviceShape) -> int:
    """What a plan may count on of a device's memory."""
    return shape.memory_bytes * k.USABLE_PERCENT // 100


def device_bytes_for(reserved: int) -> int:
    """Memory of the smallest device on which `reserved` bytes are usable."""
    return -(-reserved * 100 // k.USABLE_PERCENT)


def _times(name: str, count: int, each: int, what: str) -> Component:
    size = count * each
    return Component(size=size, line=f"{name}: {count:,} x {each} B ({what}) = {human_bytes(size)}")


def _parameters(model: ModelDescriptor, training: TrainingSpec) -> Component:
    each = k.STATE_BYTES[training.precision].parameter
    return _times("parameters", parameter_count(model), each, training.precision.value)


def _gradients(model: ModelDescriptor, training: TrainingSpec) -> Component:
    each = k.STATE_BYTES[training.precision].gradient
    return _times("gradients", trainable_count(model), each, f"for {training.precision.value} parameters")


def _optimizer(model: ModelDescriptor, training: TrainingSpec) -> Component:
    each = k.OPTIMIZER_BYTES[training.optimizer]
    return _times("optimizer", trainable_count(model), each, f"fp32 states of {training.optimizer.value}")


def _other(model: ModelDescriptor, training: TrainingSpec, shape: DeviceShape, seconds: dict[str, int]) -> Component:
    """Copies of mixed precision, module buffers, second copies of what was counted before, and the runtime.

    Second copies: DDP's buckets hold the gradients again; the rank that saves holds its state again, in main memory,
    which on a CPU device is the device's own.
    """
    copies = trainable_count(model) * k.STATE_BYTES[training.precision].copies
    buffers = model.buffer_bytes if isinstance(model, MeasuredModel) else 0
    parts = {
        f"copies for {training.precision.value}": copies,
        "buffers": buffers,
        **seconds,
        "runtime": runtime_bytes(shape),
    }
    size = sum(parts.values())
    text = " + ".join(f"{human_bytes(part)} {name}" for name, part in parts.items() if part)
    return Component(size=size, line=f"other: {text} = {human_bytes(size)}")


def _activations(model: ModelDescriptor, training: TrainingSpec, micro_batch: int) -> Component:
    if isinstance(model, MeasuredModel):
        each = model.activation_bytes_per_sample
        return _times("activations", micro_batch, each, "measured for each sample")
    tokens = micro_batch * (training.sequence_length or 0)
    element = k.ELEMENT_BYTES[training.precision]
    layers = _layers_activations(model, tokens, element)
    head = tokens * model.vocab * k.LOGIT_BYTES
    size = layers + tokens * model.hidden * element + head
    line = (
        f"activations: {tokens:,} tokens: {model.layers} layers x {human_bytes(layers // model.layers)} (tokens x"
        f" (18 h + 4 f') x {k.ACTIVATION_TORCH_PERMILLE / 1000} for plain torch x {element}/2 B) + embedding"
        f" {human_bytes(tokens * model.hidden * element)} + loss head {model.vocab:,} logits x {k.LOGIT_BYTES} B"
        f" {human_bytes(head)} = {human_bytes(size)}"
    )
    return Component(size=size, line=line)


def _layers_activations(model: TransformerModel, tokens: int, element: int) -> int:
    with_experts = counting.moe_layers(model, model.layers)
    total = (model.layers - with_experts) * _layer_activations(model, tokens, element, model.ffn)
    if model.experts is None:
        return total
    # a token passes the experts that it is sent to and the shared ones
    passed = model.experts.ffn * model.experts.per_token + model.experts.shared_ffn
    return total + with_experts * _layer_activations(model, tokens, element, passed)


def _layer_activations(model: TransformerModel, tokens: int, element: int, width: int) -> int:
    # f' of a gated ffn counts 1.5 times: it has three matrices where a plain one has two
    ffn = width * 3 // 2 if model.gated_ffn else width
    fused = tokens * (k.ACTIVATION_FUSED_BASE * model.hidden + k.ACTIVATION_FFN * ffn)
    return -(-fused * k.ACTIVATION_TORCH_PERMILLE * element // 2_000)


def _excess(evidence: Evidence | None, micro_batch: int, *, scales: bool) -> Component | None:
    """What a measured peak adds: in proportion to the micro-batch where activations are known, else a constant."""
    if evidence is None or evidence.excess == 0:
        return None
    size = -(-evidence.excess * micro_batch // evidence.micro_batch) if scales else evidence.excess
    share = f" x {micro_batch}/{evidence.micro_batch}" if scales else ""
    return Component(
        size=size,
        line=(
            f"measured: peak {human_bytes(evidence.measured_bytes)} at micro-batch {evidence.micro_batch} was"
            f" {human_bytes(evidence.excess)} above the estimate: + that{share} = {human_bytes(size)}"
        ),
    )
