"""Time of one layer for one micro-batch on one rank: kernels, and the communication that nothing hides. Pure.

Forward: matrix products, attention, passes over memory. Backward: each product twice, once for the gradient of its
input and once for that of its weights, after what recomputation does again. Tensor parallelism adds two all-reduces
each way (or as many pairs of all-gather and reduce-scatter under sequence parallelism: the same bytes), experts
two all-to-alls, context parallelism a ring of keys and values beside attention.
"""

from functools import lru_cache
from typing import NamedTuple

from kuangchao_contracts.plan import Precision, Recompute, TransformerModel
from kuangchao_operator.layers.strategy.footprint import parameters as count
from kuangchao_operator.layers.strategy.footprint.setting import Recomputed, Setting
from kuangchao_operator.layers.strategy.timing import collectives, flops
from kuangchao_operator.layers.strategy.timing.adding import added
from kuangchao_operator.layers.strategy.timing.clock import Clock, element
from kuangchao_operator.layers.strategy.timing.flops import Matrix
from kuangchao_operator.layers.strategy.timing.hardware import Software

TILE_ROWS = 128


class Work(NamedTuple):
    """What the time of a layer depends on; many settings of a search share it."""

    model: TransformerModel
    precision: Precision
    sequence: int
    tokens: int
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    divided: int
    recompute: Recompute
    modules: frozenset[Recomputed]
    fused: bool
    imbalance: int
    joined: bool
    backend: str


class Pass(NamedTuple):
    """Seconds of one direction: kernels, and communication by axis as far as it is not hidden."""

    compute: float = 0.0
    tensor: float = 0.0
    expert: float = 0.0
    context: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.tensor + self.expert + self.context


class LayerTime(NamedTuple):
    """Seconds of a layer; `backward` is the gradient of inputs and recomputation, `weight` that of weights."""

    forward: Pass
    backward: Pass
    weight: float


def work_of(setting: Setting) -> Work:
    """The part of a setting that a layer's time depends on."""
    layout = setting.layout
    return Work(
        setting.model,
        setting.precision,
        setting.sequence_length,
        setting.tokens,
        layout.tensor,
        layout.context,
        layout.expert,
        layout.expert_tensor,
        layout.tokens_divided,
        setting.recompute,
        setting.modules,
        setting.fused_attention,
        setting.expert_imbalance_permille,
        setting.logits_joined,
        setting.backend,
    )


@lru_cache(maxsize=8192)
def layer_time(work: Work, clock: Clock, *, moe: bool) -> LayerTime:
    """A layer that is trained."""
    software = clock.hardware.software_of(work.backend)
    kernels = _kernels(work, clock, software, moe=moe)
    tensor, expert = _reduces(work, clock), _dispatches(work, clock, moe=moe)
    ring = _ring(work, clock)
    shown = 1 - software.tensor_overlap_permille / 1000
    routed = 1 - software.expert_overlap_permille / 1000
    again = kernels.again / kernels.forward
    whole = 1.0 if work.recompute is Recompute.FULL else 0.0
    host = (software.host_expert_us if moe else software.host_forward_us) / 1e6
    host *= 1 + (work.tensor - 1).bit_length() * clock.curves.waiting_permille / 1000
    passed = software.context_overlap_permille / 1000
    forward = Pass(
        kernels.forward, tensor * shown, expert * routed, collectives.exposed(ring, passed, kernels.attention)
    )
    backward = Pass(
        kernels.inputs + kernels.again,
        tensor * shown * (1 + whole),
        expert * routed * (1 + whole),
        collectives.exposed(2 * ring, passed, kernels.attention_backward) + whole * forward.context,
    )
    weight = kernels.weights
    # the processor launches kernels one by one: small ones wait for it
    late = _above(host * (1.5 + again), backward.total + weight)
    return LayerTime(_late(forward, _above(host, forward.total)), _late(backward, late), weight)


def frozen(time: LayerTime) -> LayerTime:
    """The same layer when nothing in it or below it is trained."""
    return LayerTime(time.forward, Pass(), 0.0)


class _Kernels(NamedTuple):
    forward: float
    attention: float
    attention_backward: float
    inputs: float
    weights: float
    again: float


def _kernels(work: Work, clock: Clock, software: Software, *, moe: bool) -> _Kernels:
    model = work.model
    products = [_product(matrix, work, clock, software) for matrix in flops.matrices(model, moe=moe)]
    forward = added(p[0] for p in products)
    attention, attention_backward = _attention(work, clock, software)
    passes = _passes(work, clock, software, moe=moe)
    trained = model.adapter is None
    return _Kernels(
        forward=forward + attention + passes,
        attention=attention,
        attention_backward=attention_backward,
        inputs=added(p[1] for p in products) + attention_backward + 2 * passes,
        weights=added(p[2] for p in products) if trained else _adapters(work, clock, moe=moe),
        again=_again(work, products, attention, passes, moe=moe),
    )


def _product(matrix: Matrix, work: Work, clock: Clock, software: Software) -> tuple[float, float, float]:
    """Seconds forward, for the gradient of the input, and for that of the weights."""
    inputs, outputs, rows = float(matrix.inputs), float(matrix.outputs), float(work.tokens)
    groups = 1.0
    if matrix.expert and work.model.experts is not None:
        groups = work.model.experts.count / work.expert
        rows = rows * work.expert_tensor * matrix.copies * work.imbalance / (1000 * work.divided * groups)
        rows = rows if rows > 1 else 1.0
    shards = work.expert_tensor if matrix.expert else work.tensor
    inputs = inputs / shards if matrix.row else inputs
    outputs = outputs / shards if matrix.column or (matrix.expert and not matrix.row) else outputs
    if not (matrix.row or matrix.column or matrix.expert):
        rows = rows / work.divided
    # the experts of a rank run as one grouped kernel: their tiles fill the device together, half of the last is empty
    joined = rows * groups + (TILE_ROWS / 2 * groups if matrix.expert else 0.0)
    cast = 0.0
    if work.precision is Precision.FP8:
        touched = joined * (inputs + outputs) + groups * inputs * outputs
        cast = clock.passes(software.cast_passes, touched / 3, work.precision)
    return (
        cast + clock.matmul(joined, outputs, inputs, work.precision),
        cast + clock.matmul(joined, inputs, outputs, work.precision),
        cast + clock.matmul(inputs * groups, outputs, rows, work.precision),
    )


def _attention(work: Work, clock: Clock, software: Software) -> tuple[float, float]:
    """Seconds forward and backward. Unfused, scores are written and read again and again, and none are skipped; each
    step of a ring adds its part to what the steps before it found."""
    merged = 3 * (work.context - 1) * work.tokens * count.attention_out(work.model) / work.tensor
    merging = clock.passes(1, merged, work.precision) if work.context > 1 else 0.0
    operations = work.tokens * flops.score_operations(work.model, work.sequence) / work.tensor
    if work.fused:
        time = clock.attention(operations * 1000 / software.attention_permille, work.precision)
        return time + merging, time * clock.curves.attention_backward_permille / 1000 + merging
    width = count.heads(work.model).query / work.model.heads
    rows = work.tokens * work.model.heads / work.tensor
    scores = clock.matmul(rows, work.sequence, width, work.precision)
    values = clock.matmul(rows, width, work.sequence, work.precision)
    passes = clock.passes(software.score_passes, rows * work.sequence, work.precision)
    return scores + values + passes + merging, 2 * (scores + values + passes) + merging


def _passes(work: Work, clock: Clock, software: Software, *, moe: bool) -> float:
    model = work.model
    gates = 3 if model.gated_ffn else 2
    inner = model.ffn * gates / (2 * work.tensor)
    hidden = clock.passes(software.hidden_passes, work.tokens * model.hidden / work.divided, work.precision)
    experts = model.experts
    if moe and experts is not None:
        inner = experts.ffn * experts.per_token * gates / (2 * work.divided)
        inner += experts.shared_ffn * gates / (2 * work.tensor)
        copies = work.tokens * model.hidden * experts.per_token / work.divided
        hidden += clock.passes(software.expert_passes, copies, work.precision)
    return hidden + clock.passes(software.inner_passes, work.tokens * inner, work.precision)


def _adapters(work: Work, clock: Clock, *, moe: bool) -> float:
    """Narrow products move more than they compute: each reads its input and adds to its output, both ways."""
    weights = flops.adapter_weights(work.model, moe=moe)
    rank = work.model.adapter.rank if work.model.adapter is not None else 1
    return 3 * clock.passes(2, work.tokens * weights / (rank * work.tensor), work.precision)


def _again(
    work: Work, products: list[tuple[float, float, float]], attention: float, passes: float, *, moe: bool
) -> float:
    """What recomputation runs forward again."""
    if work.recompute is Recompute.NONE:
        return 0.0
    if work.recompute is Recompute.FULL:
        return added(p[0] for p in products) + attention + passes
    modules = work.modules
    redone = [flops.again(m, modules) for m in flops.matrices(work.model, moe=moe)]
    time = added(p[0] for p, done in zip(products, redone, strict=True) if done)
    if Recomputed.CORE_ATTENTION in modules:
        time += attention
    if Recomputed.OPERATORS in modules:
        return time + passes
    return time + passes * len(modules - {Recomputed.CORE_ATTENTION}) / len(Recomputed)


def _hidden(work: Work) -> float:
    return float(work.tokens * work.model.hidden * element(work.precision))


def _reduces(work: Work, clock: Clock) -> float:
    """The two all-reduces of a direction."""
    if work.tensor == 1:
        return 0.0
    links = clock.links.reach(work.tensor, 1)
    if work.divided > 1:
        return 4 * collectives.scatter(_hidden(work), links, clock.start)
    return 2 * collectives.all_reduce(_hidden(work), links, clock.start)


def _dispatches(work: Work, clock: Clock, *, moe: bool) -> float:
    """The two all-to-alls of a direction."""
    experts = work.model.experts
    if not moe or experts is None or work.expert == 1:
        return 0.0
    links = clock.links.reach(work.expert, work.expert_tensor)
    size = _hidden(work) * work.imbalance / (1000 * work.divided)
    copies = far = float(experts.per_token)
    if clock.hardware.software_of(work.backend).expert_once_per_node:
        far = _nodes_met(experts.per_token, links.away)
    return 2 * collectives.all_to_all(size * copies, links, clock.start, far=size * far)


def _nodes_met(copies: int, nodes: int) -> float:
    """How many of the nodes a token's experts stand on, when they are drawn evenly."""
    missed = 1.0
    for _ in range(copies):
        missed *= 1 - 1 / nodes
    return nodes * (1 - missed)


def _ring(work: Work, clock: Clock) -> float:
    """Keys and values of every other rank pass by once."""
    if work.context == 1:
        return 0.0
    width = count.heads(work.model)
    size = work.tokens * (width.key + width.value) * element(work.precision) / work.tensor
    links = clock.links.reach(work.context, work.tensor)
    return (work.context - 1) * collectives.send(size, links, clock.start)


def _above(time: float, hidden: float) -> float:
    return time - hidden if time > hidden else 0.0


def _late(time: Pass, seconds: float) -> Pass:
    return time._replace(compute=time.compute + seconds)
