"""Operations of a step: those that the model needs, and those that the hardware does. Pure.

A multiplication and an addition are two operations. A matrix product of the backward pass costs twice the forward
one, once for the gradient of its input and once for that of its weights; frozen weights need only the first, layers
below the first trained parameter neither. Attention scores are counted in full, also where a causal kernel skips half
of them (Narayanan et al. 2021, Megatron-LM, PaLM). Norms, activations and lookups count nothing.

Model operations over time and peak are MFU; hardware operations, which count what recomputation does again, HFU
(Chowdhery et al. 2022). For a dense GPT with f = 4h the sums are Narayanan et al.'s 72 B s L h^2 (1 + s/6h + V/12hL),
and 96 B s L h^2 (1 + s/6h + V/16hL) with full recomputation.
"""

from functools import lru_cache
from typing import NamedTuple

from kuangchao_contracts.plan import Experts, Recompute, TransformerModel
from kuangchao_operator.layers.strategy.footprint import parameters as count
from kuangchao_operator.layers.strategy.footprint.setting import Recomputed, Setting


class Matrix(NamedTuple):
    """One matrix product: weights of `inputs` x `outputs`, used by `copies` of each token."""

    part: Recomputed | None
    inputs: int
    outputs: int
    column: bool = False
    """Tensor parallelism divides its outputs."""
    row: bool = False
    """Tensor parallelism divides its inputs."""
    expert: bool = False
    copies: int = 1
    by_operator: bool = True
    """Whether recomputation by operator keeps its output."""

    @property
    def weights(self) -> int:
        """Weights that a token meets."""
        return self.inputs * self.outputs * self.copies


class Operations(NamedTuple):
    """Of one step over all devices."""

    model: int
    hardware: int


@lru_cache(maxsize=256)
def matrices(model: TransformerModel, *, moe: bool) -> tuple[Matrix, ...]:
    """The matrix products of a layer, attention scores apart."""
    return (*_attention(model), *(_moe(model, model.experts) if moe and model.experts else _ffn(model, model.ffn)))


@lru_cache(maxsize=256)
def layer_weights(model: TransformerModel, *, moe: bool) -> int:
    """Weights that a token meets in the matrix products of a layer, its adapters apart."""
    return sum(matrix.weights for matrix in matrices(model, moe=moe))


@lru_cache(maxsize=256)
def adapter_weights(model: TransformerModel, *, moe: bool) -> int:
    """Weights of adapters that a token meets in a layer."""
    share, experts = count.adapters(model, moe=moe), model.experts
    active = share.expert * experts.per_token // experts.count if experts is not None else 0
    return share.sharded + share.replicated + active


def score_operations(model: TransformerModel, sequence: int) -> int:
    """Of one token in a layer, forward: queries with keys, and probabilities with values."""
    return 2 * sequence * (count.heads(model).query + count.attention_out(model))


def operations(setting: Setting) -> Operations:
    """Of one step: all micro-batches on all data-parallel ranks."""
    tokens = setting.micro_batch * setting.sequence_length * setting.micro_batches * setting.layout.data
    needed, again = _token(setting.model, setting.sequence_length, setting.recompute, setting.modules)
    return Operations(tokens * needed, tokens * (needed + again))


@lru_cache(maxsize=1024)
def _token(
    model: TransformerModel, sequence: int, recompute: Recompute, modules: frozenset[Recomputed]
) -> tuple[int, int]:
    """Of one token, all layers: operations that the model needs, and those that recomputation adds."""
    head = 2 * model.hidden * model.vocab
    needed, again = head * (3 if count.trains_head(model) else 2), 0
    for moe in (False, True):
        layers = count.layers_of(model, 0, model.layers, moe=moe)
        trained = count.layers_of(model, min(model.layers, model.frozen_layers), model.layers, moe=moe)
        forward = 2 * layer_weights(model, moe=moe) + score_operations(model, sequence)
        added = 2 * adapter_weights(model, moe=moe)
        needed += layers * (forward + added) + trained * _backward(model, sequence, moe=moe)
        again += trained * recomputed(model, sequence, recompute, modules, moe=moe)
    return needed, again


def _backward(model: TransformerModel, sequence: int, *, moe: bool) -> int:
    weights = 2 * layer_weights(model, moe=moe) * (2 if model.adapter is None else 1)
    return weights + 2 * score_operations(model, sequence) + 4 * adapter_weights(model, moe=moe)


def recomputed(
    model: TransformerModel,
    sequence: int,
    recompute: Recompute,
    modules: frozenset[Recomputed],
    *,
    moe: bool,
) -> int:
    """Operations of one token in a layer that are done again before its backward pass."""
    if recompute is Recompute.NONE:
        return 0
    scores = score_operations(model, sequence)
    if recompute is Recompute.FULL:
        return 2 * layer_weights(model, moe=moe) + scores
    core = scores if Recomputed.CORE_ATTENTION in modules else 0
    return core + sum(2 * m.weights for m in matrices(model, moe=moe) if again(m, modules))


def again(matrix: Matrix, modules: frozenset[Recomputed]) -> bool:
    """Whether selective recomputation runs a matrix product again."""
    if Recomputed.OPERATORS in modules and not matrix.by_operator:
        return True
    return matrix.part is not None and matrix.part in modules


def _attention(model: TransformerModel) -> tuple[Matrix, ...]:
    width, out, hidden = count.heads(model), count.attention_out(model), model.hidden
    last = Matrix(None, out, hidden, row=True)
    latent = model.latent_attention
    if latent is None:
        return (Matrix(None, hidden, width.query + width.key + width.value, column=True, by_operator=False), last)
    up = Matrix(Recomputed.LATENT, latent.kv_rank, model.heads * (latent.nope_dim + latent.value_dim), column=True)
    down = Matrix(None, hidden, latent.kv_rank + latent.rope_dim)
    if latent.query_rank is None:
        return (Matrix(None, hidden, width.query, column=True), down, up, last)
    queries = Matrix(None, hidden, latent.query_rank)
    return (queries, Matrix(Recomputed.LATENT, latent.query_rank, width.query, column=True), down, up, last)


def _ffn(model: TransformerModel, width: int, part: Recomputed = Recomputed.FFN) -> tuple[Matrix, ...]:
    up = width * (2 if model.gated_ffn else 1)
    return (
        Matrix(part, model.hidden, up, column=True, by_operator=False),
        Matrix(part, width, model.hidden, row=True),
    )


def _moe(model: TransformerModel, experts: Experts) -> tuple[Matrix, ...]:
    shared = _ffn(model, experts.shared_ffn, Recomputed.EXPERTS) if experts.shared_ffn else ()
    routed = (
        m._replace(part=Recomputed.EXPERTS, expert=True, copies=experts.per_token) for m in _ffn(model, experts.ffn)
    )
    return (Matrix(None, model.hidden, experts.count), *routed, *shared)
