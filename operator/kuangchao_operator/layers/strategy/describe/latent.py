"""Latent attention as every format names it, after DeepSeek's own configuration. Pure."""

from kuangchao_contracts.plan import LatentAttention
from kuangchao_operator.layers.strategy.describe.fields import Fields


def latent_attention(fields: Fields) -> LatentAttention | None:
    """None for a model without it. Raises InvalidInputError."""
    rank = fields.maybe("kv_lora_rank")
    if not rank:
        return None
    return LatentAttention(
        query_rank=fields.maybe("q_lora_rank") or None,
        kv_rank=rank,
        nope_dim=fields.whole("qk_nope_head_dim"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        value_dim=fields.whole("v_head_dim"),
    )
