"""From a row's columns to a model descriptor: what the columns leave out is a fact of the model's family. Pure."""

import re

from bench.planner.rows import Row
from kuangchao_contracts.plan import (
    Adapter,
    Bias,
    Experts,
    LatentAttention,
    Norm,
    TransformerModel,
)

_DEEPSEEK = LatentAttention(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
_LATENT = {
    "deepseekv3": _DEEPSEEK,
    "deepseek-v3": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi": _DEEPSEEK,
    "deepseek-v2-lite": _DEEPSEEK.replace(query_rank=None),
    "moonlight": _DEEPSEEK.replace(query_rank=None),
}
"""Published config.json of each family."""
_MEGATRON_LATENT = LatentAttention(kv_rank=32, nope_dim=128, rope_dim=64, value_dim=128)
"""Defaults of Megatron-LM's arguments: no query rank, kv-lora-rank 32."""
_LATENT_FLAGS = {
    "query_rank": "q-lora-rank",
    "kv_rank": "kv-lora-rank",
    "nope_dim": "qk-head-dim",
    "rope_dim": "qk-pos-emb-head-dim",
    "value_dim": "v-head-dim",
}
_DENSE_LAYERS = {"deepseek": 3, "kimi": 1, "moonlight": 1}
_SHARED_FFN = {"deepseek": 2048, "kimi": 2048, "moonlight": 2816}
_PLAIN = ("gpt", "mpt", "mt-nlg", "bert", "opt-", "bloom", "megatron", "nemotron-4", "15b")
_ROWS_OF_GPT_OSS = ("gpt oss", "gpt-oss", "gpt_oss")
_HYBRID = ("nemotron-3-nano", "nemotron-h", "mamba", "jamba")
_NOT_BUILT = {
    r"\bmtp-num-layers=[1-9]": "layers that predict further tokens",
    r"\bfine-grained-activation-offloading=true": "activations in main memory",
    r"\bdefer-embedding-wgrad-compute=true": "gradients of logits that are kept until the pipeline is empty",
}
"""Flags of Megatron-LM."""
_SHAPES = {"gpt-7b": (32, 4096, 32, 16384, 50257)}
"""Layers, hidden, heads, ffn and vocabulary where a report names a usual size only (GPT-3 6.7B)."""


class UnsupportedRowError(ValueError):
    """A row that cannot be estimated, and why."""


def model_of(row: Row) -> TransformerModel:
    """The row's model. Raises UnsupportedRowError."""
    name = row.text("model").lower()
    for flag, what in _NOT_BUILT.items():
        if re.search(flag, row.notes):
            raise UnsupportedRowError(f"{row.text('model')}: {what}")
    if any(word in name for word in _HYBRID):
        raise UnsupportedRowError(f"{row.text('model')}: layers that are no transformer layers")
    layers, hidden, heads, ffn, vocab = _shape(row, name)
    gated = _gated(row, name)
    gpt = not gated and "mpt" not in name
    experts = _experts(row, name)
    return TransformerModel(
        name=row.text("model"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=row.whole("kv_heads") or heads,
        head_dim=row.whole("head_dim"),
        ffn=ffn,
        vocab=vocab,
        gated_ffn=gated,
        tied_embeddings=_tied(row, name),
        norm=Norm.RMS if gated else Norm.LAYER,
        bias=_bias(row, name, gpt=gpt),
        learned_positions=(row.whole("seq") or 0) if _learned_positions(row, name) else 0,
        experts=experts,
        latent_attention=_latent(row, name),
        adapter=Adapter(rank=16) if "lora" in name else None,
    )


def fuses_attention(row: Row) -> bool:
    """Megatron-LM's own modules ("local") have no fused attention kernel."""
    return row.text("attn") != "unfused" and "transformer-impl=local" not in row.notes


def groups_experts(row: Row) -> bool:
    """Megatron-LM's own tests compute experts one after another, unless a flag or their name says otherwise."""
    if "functional_tests" not in row.text("source"):
        return True
    return "moe-grouped-gemm=true" in row.notes or "groupedgemm" in row.text("model").lower()


def has_dropout(row: Row) -> bool:
    """GPT-style models without grouped queries are trained with dropout, unless a flag in the notes says otherwise."""
    if "hidden-dropout=0.0" in row.notes or "dropout=0.0" in row.notes:
        return False
    name = row.text("model").lower()
    if row.whole("kv_heads") not in (None, row.whole("heads")):
        return False
    golden = not _gated(row, name) and "/gpt3_" in row.text("source")
    return golden or _published_gpt(row, name)


def _published_gpt(row: Row, name: str) -> bool:
    early = any(word in row.text("source").lower() for word in ("calculon", "vtrain", "megatron-lm#", "narayanan"))
    return early and any(name.startswith(word) for word in ("gpt", "mt-nlg"))


def _shape(row: Row, name: str) -> tuple[int, int, int, int, int]:
    found = tuple(row.whole(column) for column in ("layers", "hidden", "heads", "ffn", "vocab"))
    usual = _SHAPES.get(name, (None,) * 5)
    values = [own if own is not None else other for own, other in zip(found, usual, strict=True)]
    absent = [n for n, v in zip(("layers", "hidden", "heads", "ffn", "vocab"), values, strict=True) if v is None]
    if absent:
        raise UnsupportedRowError(f"not stated: {', '.join(absent)}")
    layers, hidden, heads, ffn, vocab = (int(value) for value in values if value is not None)
    return layers, hidden, heads, ffn, vocab


def _gated(row: Row, name: str) -> bool:
    if "swiglu=true" in row.notes or any(word in name for word in _ROWS_OF_GPT_OSS):
        return True
    return not any(name.startswith(word) for word in _PLAIN)


def _tied(row: Row, name: str) -> bool:
    if "untie-embeddings" in row.notes:
        return False
    return not _gated(row, name)


def _bias(row: Row, name: str, *, gpt: bool) -> Bias:
    if "disable-bias-linear" in row.notes:
        return Bias.NONE
    if gpt or any(word in name for word in _ROWS_OF_GPT_OSS):
        return Bias.ALL
    return Bias.QKV if "qwen2" in name or "qwen1.5" in name else Bias.NONE


def _learned_positions(row: Row, name: str) -> bool:
    if "position-embedding-type=rope" in row.notes or "use-rotary" in row.notes:
        return False
    return not _gated(row, name)


def _latent(row: Row, name: str) -> LatentAttention | None:
    known = next((latent for word, latent in _LATENT.items() if word in name), None)
    if known is None and "multi-latent-attention" in row.notes:
        given = {field: size for field, flag in _LATENT_FLAGS.items() if (size := row.flag(flag)) is not None}
        return _MEGATRON_LATENT.replace(**given)
    return known


def _experts(row: Row, name: str) -> Experts | None:
    count = row.whole("experts")
    if count is None or count == 1:
        return None
    shared = row.flag("moe-shared-expert-intermediate-size")
    dense = re.search(r"moe-layer-freq=\(\[0\]\*(\d+)\+\[1\]", row.notes)
    return Experts(
        count=count,
        per_token=row.whole("topk") or 2,
        ffn=row.whole("moe_ffn") or row.whole("ffn") or 1,
        shared_ffn=shared if shared is not None else _of_family(_SHARED_FFN, name),
        dense_layers=int(dense.group(1)) if dense else _of_family(_DENSE_LAYERS, name),
    )


def _of_family(known: dict[str, int], name: str) -> int:
    return next((value for word, value in known.items() if word in name), 0)
