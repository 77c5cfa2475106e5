"""What a layer keeps for its backward pass on one rank, tensor by tensor, for one micro-batch. Pure.

The list follows Korthikanti et al. 2022 ("Reducing Activation Recomputation"): with dropout, sequence parallelism and
f = 4h it sums to their s b h (34 + 5 a s / h) / t, and without the attention scores to 34 s b h / t. Experts, latent
attention, grouped queries and fp8 are the same list with other widths.
"""

from typing import NamedTuple

from kuangchao_contracts.plan import Recompute
from kuangchao_operator.layers.strategy.footprint.calibration import Backend
from kuangchao_operator.layers.strategy.footprint.parameters import attention_out, heads
from kuangchao_operator.layers.strategy.footprint.setting import Recomputed, Setting

MASK = 1
FLOAT = 4


class Tensor(NamedTuple):
    """One tensor that is kept: bytes for each token, the ranks that divide it, and what would recompute it."""

    name: str
    bytes_per_token: int
    divided: int
    part: Recomputed | None
    by_operator: bool = False
    """Whether recomputation by operator keeps it."""


class LayerMemory(NamedTuple):
    """Bytes of a layer on one rank for one micro-batch."""

    kept: int
    whole: int
    """Without recomputation: what is live while the layer's backward pass runs."""
    working: int
    """Gradients of activations that come and go during its backward pass."""


def layer_memory(setting: Setting, backend: Backend, *, moe: bool) -> LayerMemory:
    """What a layer takes, with experts or without."""
    tensors = kept_tensors(setting, backend, moe=moe)
    whole = _sum(setting, backend, tensors)
    return LayerMemory(kept=_kept(setting, backend, tensors, whole), whole=whole, working=_working(setting, backend))


def kept_tensors(setting: Setting, backend: Backend, *, moe: bool) -> tuple[Tensor, ...]:
    """Everything that a layer keeps when nothing is recomputed."""
    block = (*_around(setting, backend), *_attention(setting, backend))
    if moe:
        return (*block, *_experts(setting, backend))
    return (*block, *_ffn(setting, backend, setting.model.ffn, Recomputed.FFN))


def hidden_bytes(setting: Setting, backend: Backend) -> int:
    """One hidden state of the micro-batch on this rank, as layers and stages hand it on."""
    size = setting.tokens * setting.model.hidden * backend.element[setting.precision]
    return -(-size // setting.layout.tokens_divided)


def _kept(setting: Setting, backend: Backend, tensors: tuple[Tensor, ...], whole: int) -> int:
    if setting.recompute is Recompute.FULL:
        return -(-hidden_bytes(setting, backend) * backend.recompute_permille.get(Recompute.FULL, 1000) // 1000)
    if setting.recompute is Recompute.NONE:
        return whole
    if Recomputed.OPERATORS in setting.modules:
        return _sum_plain(setting, tuple(t for t in tensors if t.by_operator)) + hidden_bytes(setting, backend)
    left = _sum_plain(setting, tuple(t for t in tensors if t.part is None or not setting.recomputes(t.part)))
    permille = backend.recompute_permille.get(Recompute.SELECTIVE, backend.activation_permille)
    return min(whole, -(-left * permille // 1000))


def _sum(setting: Setting, backend: Backend, tensors: tuple[Tensor, ...]) -> int:
    return -(-_sum_plain(setting, tensors) * backend.activation_permille // 1000)


def _sum_plain(setting: Setting, tensors: tuple[Tensor, ...]) -> int:
    return sum(-(-setting.tokens * tensor.bytes_per_token // tensor.divided) for tensor in tensors)


def _working(setting: Setting, backend: Backend) -> int:
    """The gradients that meet at the widest point of a layer: of the ffn's inner state and of the hidden state."""
    model, element = setting.model, backend.element[setting.precision]
    inner = model.ffn * (2 if model.gated_ffn else 1)
    if model.experts is not None:
        inner = max(model.experts.ffn * model.experts.per_token * (2 if model.gated_ffn else 1), 1)
    size = -(-setting.tokens * inner * element // setting.layout.tensor)
    return size + 2 * hidden_bytes(setting, backend)


def _around(setting: Setting, backend: Backend) -> tuple[Tensor, ...]:
    """Norms, residuals and dropout masks: what sequence parallelism divides."""
    hidden, divided = setting.model.hidden, setting.layout.tokens_divided
    element, linear = backend.element[setting.precision], backend.linear_input[setting.precision]
    masks = (Tensor("dropout masks", 2 * MASK * hidden, divided, None),) if setting.dropout else ()
    return (
        Tensor("inputs of the norms", 2 * element * hidden, divided, None),
        Tensor("outputs of the norms", 2 * linear * hidden, divided, Recomputed.NORMS),
        *masks,
    )


def _attention(setting: Setting, backend: Backend) -> tuple[Tensor, ...]:
    model, tensor = setting.model, setting.layout.tensor
    width, out = heads(model), attention_out(model)
    element, linear = backend.element[setting.precision], backend.linear_input[setting.precision]
    latent = Recomputed.LATENT if model.latent_attention is not None else None
    fp8_copy = linear if linear < element else 0
    sequences = setting.layout.context if backend.gathers_keys else 1
    return (
        Tensor("queries", element * width.query, tensor, latent, by_operator=True),
        Tensor("keys", element * width.key * sequences, tensor, latent),
        Tensor("values", element * width.value * sequences, tensor, latent, by_operator=True),
        Tensor("attention output", element * out, tensor, None, by_operator=True),
        *((Tensor("attention output in fp8", fp8_copy * out, tensor, None),) if fp8_copy else ()),
        *_latent(setting, backend),
        *_scores(setting, backend),
    )


def _latent(setting: Setting, backend: Backend) -> tuple[Tensor, ...]:
    latent = setting.model.latent_attention
    if latent is None:
        return ()
    element, divided = backend.element[setting.precision], setting.layout.tokens_divided
    ranks = 2 * (latent.query_rank or 0) + 2 * latent.kv_rank + latent.rope_dim
    return (Tensor("latents and their norms", element * ranks, divided, None, by_operator=True),)


def _scores(setting: Setting, backend: Backend) -> tuple[Tensor, ...]:
    """Softmax output, dropout mask and its output without a fused kernel: s of each for each head and token."""
    if setting.fused_attention:
        return (
            Tensor("softmax statistics", FLOAT * setting.model.heads, setting.layout.tensor, None, by_operator=True),
        )
    element = backend.element[setting.precision]
    each = element + (MASK + element if setting.dropout else 0)
    size = each * setting.model.heads * setting.sequence_length
    return (Tensor("attention scores", size, setting.layout.tensor, Recomputed.CORE_ATTENTION),)


def _ffn(setting: Setting, backend: Backend, width: int, part: Recomputed | None) -> tuple[Tensor, ...]:
    gated, tensor, model = setting.model.gated_ffn, setting.layout.tensor, setting.model
    element, linear = backend.element[setting.precision], backend.linear_input[setting.precision]
    gate = (Tensor("gate", element * width, tensor, part, by_operator=True),) if gated else ()
    return (
        *gate,
        Tensor("up", element * width, tensor, part, by_operator=not gated),
        Tensor("input of the down projection", linear * width, tensor, part),
        Tensor("output of the ffn", element * model.hidden, setting.layout.tokens_divided, part, by_operator=True)
        if setting.recomputes(Recomputed.OPERATORS)
        else Tensor("output of the ffn", 0, 1, part),
    )


def _experts(setting: Setting, backend: Backend) -> tuple[Tensor, ...]:
    """Tokens as they stand at the experts after dispatch, balanced but for `expert_imbalance_permille`."""
    experts = setting.model.experts
    if experts is None:
        return ()
    model, layout = setting.model, setting.layout
    element, linear = backend.element[setting.precision], backend.linear_input[setting.precision]
    # each rank sends out its own tokens per_token times; ranks that divide an expert's matrices all see its tokens
    copies = experts.per_token * setting.expert_imbalance_permille // 1000
    seen, divided = copies * layout.expert_tensor, layout.tokens_divided
    inner = copies * experts.ffn
    shared = _ffn(setting, backend, experts.shared_ffn, Recomputed.EXPERTS) if experts.shared_ffn else ()
    return (
        Tensor("router", 2 * FLOAT * experts.count, divided, None),
        Tensor("dispatched tokens", linear * model.hidden * seen, divided, Recomputed.EXPERTS, by_operator=True),
        Tensor("up and gate of experts", element * inner * (2 if model.gated_ffn else 1), divided, Recomputed.EXPERTS),
        Tensor("input of the experts' down projection", linear * inner, divided, Recomputed.EXPERT_ACTIVATION),
        # the router's gradient is a product with it
        Tensor("output of experts", element * model.hidden * seen, divided, Recomputed.EXPERTS),
        *shared,
    )
