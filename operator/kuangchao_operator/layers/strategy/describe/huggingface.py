"""Reader of Hugging Face's config.json. Pure: takes the parsed file.

A family that is not listed is refused: its layers may hold what the descriptor does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kuangchao_contracts.base import MOST_COUNT
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
    experts: str = ""
    """The member with the number of experts, of which its library takes some for granted where it is left out."""


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(experts="num_local_experts"),
    "qwen2": Family(bias=Bias.QKV),
    "qwen2_moe": Family(bias=Bias.QKV, experts="num_experts"),
    "qwen3": Family(),
    "qwen3_moe": Family(experts="num_experts"),
    "deepseek_v2": Family(experts="n_routed_experts"),
    "deepseek_v3": Family(experts="n_routed_experts"),
    "kimi_k2": Family(experts="n_routed_experts"),
    "phi3": Family(),
    "gemma": Family(tied=True),
    "gpt2": Family(bias=Bias.ALL, norm=Norm.LAYER, gated=False, tied=True, learned_positions=True),
}
MOST_POSITIONS: Final = 16_777_216
MOST_NAME: Final = 256
"""What a descriptor can say of positions, and characters of its name."""


def describe(config: Mapping[str, Any]) -> TransformerModel:
    """The descriptor of a model. Raises InvalidInputError, which names the field."""
    fields = Fields(config)
    kind = fields.text("model_type")
    family = FAMILIES.get(kind)
    if family is None:
        raise InvalidInputError("model_type", kind or None, "is not built", ", ".join(sorted(FAMILIES)))
    hidden = fields.whole("hidden_size", "n_embd")
    heads = fields.whole("num_attention_heads", "n_head")
    longest = fields.maybe("max_position_embeddings", "n_positions", most=MOST_POSITIONS) or None
    if family.learned_positions and longest is None:
        raise InvalidInputError("n_positions", None, "is missing from the configuration")
    latent = latent_attention(fields)
    return TransformerModel(
        name=(fields.text("_name_or_path") or kind)[:MOST_NAME],
        layers=fields.whole("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.maybe("num_key_value_heads") or heads,
        head_dim=None if latent is not None else fields.maybe("head_dim") or None,
        ffn=_ffn(fields, family),
        vocab=fields.whole("vocab_size"),
        gated_ffn=family.gated,
        tied_embeddings=fields.flag("tie_word_embeddings", default=family.tied),
        norm=family.norm,
        bias=_bias(fields, family),
        learned_positions=(longest or 0) if family.learned_positions else 0,
        max_sequence=longest,
        experts=_experts(fields, family),
        latent_attention=latent,
    )


def _ffn(fields: Fields, family: Family) -> int:
    """GPT-2 has a usual width; every other family takes one for granted that fits none of its models but one."""
    if not family.learned_positions:
        return fields.whole("intermediate_size")
    return fields.maybe("n_inner") or 4 * fields.whole("hidden_size", "n_embd", most=MOST_COUNT // 4)


def _bias(fields: Fields, family: Family) -> Bias:
    if fields.flag("mlp_bias", default=False):
        return Bias.ALL
    return Bias.QKV if fields.flag("attention_bias", default=False) else family.bias


def _experts(fields: Fields, family: Family) -> Experts | None:
    if family.experts and not fields.says(family.experts):
        raise InvalidInputError(family.experts, None, "is missing from the configuration")
    count = fields.maybe("num_local_experts", "n_routed_experts", "num_experts")
    if not count:
        return None
    if not fields.absent("mlp_only_layers"):
        raise InvalidInputError("mlp_only_layers", "a list", "is not built: plain layers must come first", "[]")
    ffn = fields.whole("moe_intermediate_size", "intermediate_size")
    shared = fields.maybe("shared_expert_intermediate_size")
    if shared is None:
        shared = (fields.maybe("n_shared_experts", most=MOST_COUNT // ffn) or 0) * ffn
    return Experts(
        count=count,
        per_token=fields.whole("num_experts_per_tok"),
        ffn=ffn,
        shared_ffn=shared,
        dense_layers=fields.maybe("first_k_dense_replace") or 0,
        every=fields.maybe("moe_layer_freq", "decoder_sparse_step") or 1,
    )
