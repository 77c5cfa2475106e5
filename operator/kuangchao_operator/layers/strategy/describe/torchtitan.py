"""Reader of torchtitan's model arguments ("flavours"): llama-like ones and deepseek_v3. Pure: gets them parsed."""

from collections.abc import Mapping
from typing import Any

from kuangchao_contracts.plan import Experts, TransformerModel
from kuangchao_operator.layers.strategy.describe.fields import Fields
from kuangchao_operator.layers.strategy.describe.latent import latent_attention


def describe(arguments: Mapping[str, Any], name: str = "flavour") -> TransformerModel:
    """The descriptor of a flavour. Raises InvalidInputError, which names the field."""
    fields = Fields(arguments)
    hidden, heads = fields.whole("dim"), fields.whole("n_heads")
    return TransformerModel(
        name=name,
        layers=fields.whole("n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.maybe("n_kv_heads") or heads,
        head_dim=fields.maybe("head_dim"),
        ffn=fields.maybe("inter_dim", "hidden_dim") or _rounded_ffn(fields, hidden),
        vocab=fields.whole("vocab_size"),
        tied_embeddings=fields.flag("enable_weight_tying", default=False),
        max_sequence=fields.maybe("max_seq_len"),
        experts=_experts(fields),
        latent_attention=latent_attention(fields),
    )


def _rounded_ffn(fields: Fields, hidden: int) -> int:
    """Llama's rule: two thirds of four times the hidden size, scaled, then up to the next multiple."""
    width = int(fields.real("ffn_dim_multiplier", 1.0) * (2 * 4 * hidden // 3))
    multiple = fields.maybe("multiple_of") or 256
    return -(-width // multiple) * multiple


def _experts(fields: Fields) -> Experts | None:
    count = fields.maybe("n_routed_experts", "num_experts")
    if not count:
        return None
    ffn = fields.whole("moe_inter_dim")
    return Experts(
        count=count,
        per_token=fields.whole("n_activated_experts", "top_k"),
        ffn=ffn,
        shared_ffn=(fields.maybe("n_shared_experts", "num_shared_experts") or 0) * ffn,
        dense_layers=fields.maybe("n_dense_layers") or 0,
    )
