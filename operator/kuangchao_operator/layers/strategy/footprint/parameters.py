"""How many parameters a transformer has, layer by layer, and how the axes divide them. Pure.

Formulas as in Megatron-LM's theoretical_memory_usage.py, with biases, positions, experts and low-rank adapters added.
"""

from typing import NamedTuple

from kuangchao_contracts.plan import Adapter, Bias, Experts, LatentAttention, Norm, TransformerModel


class Share(NamedTuple):
    """A count by what divides it: tensor parallelism, nothing, or expert (with expert tensor) parallelism."""

    sharded: int = 0
    replicated: int = 0
    expert: int = 0

    @property
    def total(self) -> int:
        """All of them, undivided."""
        return self.sharded + self.replicated + self.expert

    def plus(self, other: "Share") -> "Share":
        """The sum, kind by kind."""
        return Share(self.sharded + other.sharded, self.replicated + other.replicated, self.expert + other.expert)

    def times(self, factor: int) -> "Share":
        """So many of it."""
        return Share(self.sharded * factor, self.replicated * factor, self.expert * factor)

    def per_rank(self, tensor: int, expert_ranks: int) -> "Share":
        """What one rank holds, rounded up."""
        return Share(-(-self.sharded // tensor), self.replicated, -(-self.expert // expert_ranks))


class Heads(NamedTuple):
    """Widths of an attention layer over all heads."""

    query: int
    key: int
    value: int


def heads(model: TransformerModel) -> Heads:
    """Widths of queries, keys and values as the attention kernel sees them."""
    latent = model.latent_attention
    if latent is not None:
        width = model.heads * (latent.nope_dim + latent.rope_dim)
        return Heads(query=width, key=width, value=model.heads * latent.value_dim)
    head_dim = model.head_dim or model.hidden // model.heads
    narrow = (model.kv_heads or model.heads) * head_dim
    return Heads(query=model.heads * head_dim, key=narrow, value=narrow)


def attention_out(model: TransformerModel) -> int:
    """Width of what attention hands to its output projection."""
    latent = model.latent_attention
    return model.heads * latent.value_dim if latent is not None else heads(model).query


def moe_layers(model: TransformerModel, stop: int) -> int:
    """How many of the first `stop` layers have experts."""
    experts = model.experts
    if experts is None or stop <= experts.dense_layers:
        return 0
    return -(-(stop - experts.dense_layers) // experts.every)


def layer(model: TransformerModel, *, moe: bool) -> Share:
    """Parameters of one layer without adapters."""
    block = _attention(model).plus(_norms(model))
    if moe and model.experts is not None:
        return block.plus(_experts(model, model.experts))
    return block.plus(_ffn(model, model.ffn))


def adapters(model: TransformerModel, *, moe: bool) -> Share:
    """Parameters that low-rank adapters add to a layer."""
    return _adapters(model, model.adapter, moe=moe) if model.adapter is not None else Share()


def embedding(model: TransformerModel, vocab: int) -> Share:
    """The input embedding with learned positions; `vocab` may be padded."""
    return Share(sharded=vocab * model.hidden, replicated=model.learned_positions * model.hidden)


def final_norm(model: TransformerModel) -> Share:
    """The norm before the output layer."""
    return Share(replicated=_norm(model, model.hidden))


def head(model: TransformerModel, vocab: int) -> Share:
    """The output layer."""
    return Share(sharded=vocab * model.hidden)


def layers_of(model: TransformerModel, first: int, stop: int, *, moe: bool) -> int:
    """How many of the layers from `first` up to, not including, `stop` are of a kind."""
    with_experts = moe_layers(model, stop) - moe_layers(model, first)
    return with_experts if moe else stop - first - with_experts


def trainable_layer(model: TransformerModel, *, moe: bool) -> Share:
    """Those of a layer that have gradients, where it is not frozen: all, or those of its adapters."""
    return adapters(model, moe=moe) if model.adapter is not None else layer(model, moe=moe)


def run(model: TransformerModel, first: int, stop: int) -> Share:
    """All parameters of a run of layers, adapters included."""
    total = Share()
    for moe in (False, True):
        each = layer(model, moe=moe).plus(adapters(model, moe=moe))
        total = total.plus(each.times(layers_of(model, first, stop, moe=moe)))
    return total


def trainable_run(model: TransformerModel, first: int, stop: int) -> Share:
    """Those of a run of layers that have gradients; none below `frozen_layers`."""
    first = min(stop, max(first, model.frozen_layers))
    total = Share()
    for moe in (False, True):
        each = trainable_layer(model, moe=moe)
        total = total.plus(each.times(layers_of(model, first, stop, moe=moe)))
    return total


def trains_embedding(model: TransformerModel) -> bool:
    """Whether the embedding has gradients."""
    return model.adapter is None and model.frozen_layers == 0


def trains_head(model: TransformerModel) -> bool:
    """Whether the final norm and the output layer have gradients."""
    return model.adapter is None


def count(model: TransformerModel) -> int:
    """Parameters of the whole model, without padding; tied embeddings count once."""
    ends = embedding(model, model.vocab).plus(final_norm(model))
    if not model.tied_embeddings:
        ends = ends.plus(head(model, model.vocab))
    return run(model, 0, model.layers).plus(ends).total


def trainable_count(model: TransformerModel) -> int:
    """Parameters of the whole model that have gradients."""
    total = trainable_run(model, 0, model.layers)
    if trains_embedding(model):
        total = total.plus(embedding(model, model.vocab))
    if trains_head(model):
        total = total.plus(final_norm(model))
        if not (model.tied_embeddings and trains_embedding(model)):
            total = total.plus(head(model, model.vocab))
    return total.total


def _attention(model: TransformerModel) -> Share:
    if model.latent_attention is not None:
        return _latent(model, model.latent_attention)
    width = heads(model)
    qkv = width.query + width.key + width.value
    bias = qkv if model.bias is not Bias.NONE else 0
    out_bias = model.hidden if model.bias is Bias.ALL else 0
    return Share(sharded=model.hidden * (qkv + width.query) + bias, replicated=out_bias)


def _latent(model: TransformerModel, latent: LatentAttention) -> Share:
    width, norm = heads(model), 1 if model.norm is Norm.RMS else 2
    out = attention_out(model) * model.hidden
    keys_values = latent.kv_rank * model.heads * (latent.nope_dim + latent.value_dim)
    down = model.hidden * (latent.kv_rank + latent.rope_dim) + norm * latent.kv_rank
    if latent.query_rank is None:
        return Share(sharded=model.hidden * width.query + keys_values + out, replicated=down)
    down += latent.query_rank * (model.hidden + norm)
    return Share(sharded=latent.query_rank * width.query + keys_values + out, replicated=down)


def _ffn(model: TransformerModel, width: int) -> Share:
    matrices = 3 if model.gated_ffn else 2
    bias = Share(sharded=width * (matrices - 1), replicated=model.hidden) if model.bias is Bias.ALL else Share()
    return Share(sharded=matrices * model.hidden * width).plus(bias)


def _experts(model: TransformerModel, experts: Experts) -> Share:
    each = _ffn(model, experts.ffn)
    shared = _ffn(model, experts.shared_ffn) if experts.shared_ffn else Share()
    return Share(
        sharded=shared.sharded,
        replicated=shared.replicated + model.hidden * experts.count,
        expert=experts.count * each.total,
    )


def _norm(model: TransformerModel, width: int) -> int:
    return width if model.norm is Norm.RMS else 2 * width


def _norms(model: TransformerModel) -> Share:
    return Share(replicated=2 * _norm(model, model.hidden))


def _adapters(model: TransformerModel, adapter: Adapter, *, moe: bool) -> Share:
    """Each adapted matrix of n x m adds rank x (n + m); query, key and value are one matrix, gate and up another."""
    width = heads(model)
    inner = width.query + width.key + width.value + attention_out(model)
    attention = Share(sharded=adapter.rank * (2 * model.hidden + inner))
    if adapter.attention_only:
        return attention
    experts = model.experts if moe else None
    if experts is None:
        return attention.plus(Share(sharded=_adapted_ffn(model, adapter.rank, model.ffn)))
    shared = _adapted_ffn(model, adapter.rank, experts.shared_ffn) if experts.shared_ffn else 0
    routed = experts.count * _adapted_ffn(model, adapter.rank, experts.ffn)
    return attention.plus(Share(sharded=shared, expert=routed))


def _adapted_ffn(model: TransformerModel, rank: int, width: int) -> int:
    return rank * (2 * model.hidden + width * (3 if model.gated_ffn else 2))
