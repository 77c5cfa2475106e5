"""Reader of Hugging Face's config.json. Pure: takes the parsed file.

A family that is not listed is refused: its layers may hold what the descriptor does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Bias, Experts, Norm, TransformerModel
from kuangchao_operator.layers.strategy.describe.fields import Fields
from kuangchao_operator.layers.strategy.describe.latent import latent_attention


@dataclass(frozen=True, slots=True)
class Family:
    """What a model type implies without saying so."""

    bias: Bias = Bias.NONE
    norm: Norm = Norm.RMS
    gated: bool = True
    tied: bool = False
    learned_positions: bool = False


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "qwen2": Family(bias=Bias.QKV),
    "qwen2_moe": Family(bias=Bias.QKV),
    "qwen3": Family(),
    "qwen3_moe": Family(),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "kimi_k2": Family(),
    "phi3": Family(),
    "gemma": Family(tied=True),
    "gpt2": Family(bias=Bias.ALL, norm=Norm.LAYER, gated=False, tied=True, learned_positions=True),
}


def describe(config: Mapping[str, Any]) -> TransformerModel:
    """The descriptor of a model. Raises InvalidInputError, which names the field."""
    fields = Fields(config)
    kind = fields.text("model_type")
    family = FAMILIES.get(kind)
    if family is None:
        raise InvalidInputError("model_type", kind or None, "is not built", ", ".join(sorted(FAMILIES)))
    hidden = fields.whole("hidden_size", "n_embd")
    heads = fields.whole("num_attention_heads", "n_head")
    longest = fields.maybe("max_position_embeddings", "n_positions")
    latent = latent_attention(fields)
    return TransformerModel(
        name=fields.text("_name_or_path") or kind,
        layers=fields.whole("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.maybe("num_key_value_heads") or heads,
        head_dim=None if latent is not None else fields.maybe("head_dim"),
        ffn=fields.maybe("intermediate_size", "n_inner") or 4 * hidden,
        vocab=fields.whole("vocab_size"),
        gated_ffn=family.gated,
        tied_embeddings=fields.flag("tie_word_embeddings", default=family.tied),
        norm=family.norm,
        bias=_bias(fields, family),
        learned_positions=(longest or 0) if family.learned_positions else 0,
        max_sequence=longest,
        experts=_experts(fields),
        latent_attention=latent,
    )


def _bias(fields: Fields, family: Family) -> Bias:
    if fields.flag("mlp_bias", default=False):
        return Bias.ALL
    return Bias.QKV if fields.flag("attention_bias", default=False) else family.bias


def _experts(fields: Fields) -> Experts | None:
    count = fields.maybe("num_local_experts", "n_routed_experts", "num_experts")
    if not count:
        return None
    if not fields.absent("mlp_only_layers"):
        raise InvalidInputError("mlp_only_layers", "a list", "is not built: plain layers must come first", "[]")
    ffn = fields.whole("moe_intermediate_size", "intermediate_size")
    shared = fields.maybe("shared_expert_intermediate_size")
    return Experts(
        count=count,
        per_token=fields.whole("num_experts_per_tok"),
        ffn=ffn,
        shared_ffn=shared if shared is not None else (fields.maybe("n_shared_experts") or 0) * ffn,
        dense_layers=fields.maybe("first_k_dense_replace") or 0,
        every=fields.maybe("moe_layer_freq", "decoder_sparse_step") or 1,
    )
