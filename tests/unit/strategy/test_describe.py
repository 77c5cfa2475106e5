"""Readers of published configurations, against published parameter counts."""

from typing import Any

import pytest

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Bias, Experts
from kuangchao_operator.layers.strategy.describe import huggingface, torchtitan
from kuangchao_operator.layers.strategy.footprint.parameters import count

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def config(kind: str, sizes: str, **more: Any) -> dict[str, Any]:
    """A config.json with layers, hidden, heads, kv heads, ffn and vocabulary."""
    numbers = (int(size) for size in sizes.split())
    return {"model_type": kind, **dict(zip(SIZES, numbers, strict=True)), **more}


def experts(count_: int, per_token: int, ffn: int, shared: int, dense: int) -> dict[str, Any]:
    return {
        "n_routed_experts": count_,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": ffn,
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
        "moe_layer_freq": 1,
        **LATENT,
    }


EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 2}
PUBLISHED = {
    "Llama-2-7B": (config("llama", "32 4096 32 32 11008 32000"), 6_738_415_616),
    "Llama-2-13B": (config("llama", "40 5120 40 40 13824 32000"), 13_015_864_320),
    "Llama-3-8B": (config("llama", "32 4096 32 8 14336 128256"), 8_030_261_248),
    "Llama-3-70B": (config("llama", "80 8192 64 8 28672 128256"), 70_553_706_496),
    "Llama-3.1-405B": (config("llama", "126 16384 128 8 53248 128256"), 405_853_388_800),
    "Llama-3.2-1B": (
        config("llama", "16 2048 32 8 8192 128256", head_dim=64, tie_word_embeddings=True),
        1_235_814_400,
    ),
    "Mistral-7B": (config("mistral", "32 4096 32 8 14336 32000"), 7_241_732_096),
    "Qwen2-7B": (config("qwen2", "28 3584 28 4 18944 152064"), 7_615_616_512),
    "Qwen2.5-0.5B": (config("qwen2", "24 896 14 2 4864 151936", tie_word_embeddings=True), 494_032_768),
    "Mixtral-8x7B": (config("mixtral", "32 4096 32 8 14336 32000", **EIGHT), 46_702_792_704),
    "Mixtral-8x22B": (config("mixtral", "56 6144 48 8 16384 32768", **EIGHT), 140_630_071_296),
    "DeepSeek-V2-Lite": (
        config("deepseek_v2", "27 2048 16 16 10944 102400", **experts(64, 6, 1408, 2, 1)),
        15_706_484_224,
    ),
    "DeepSeek-V2": (
        config("deepseek_v2", "60 5120 128 128 12288 102400", q_lora_rank=1536, **experts(160, 6, 1536, 2, 1)),
        235_741_434_880,
    ),
    "DeepSeek-V3": (
        config("deepseek_v3", "61 7168 128 128 18432 129280", q_lora_rank=1536, **experts(256, 8, 2048, 1, 3)),
        671_026_419_200,
    ),
    "Qwen3-30B-A3B": (
        config(
            "qwen3_moe",
            "48 2048 32 4 6144 151936",
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            mlp_only_layers=[],
        ),
        30_532_122_624,
    ),
    "GPT-2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_number(name: str) -> None:
    values, published = PUBLISHED[name]
    assert count(huggingface.describe(values)) == pytest.approx(published, rel=1e-6)


def test_what_a_family_implies_and_a_config_says() -> None:
    qwen = huggingface.describe(config("qwen2", "28 3584 28 4 18944 152064", max_position_embeddings=131072))
    assert (qwen.bias, qwen.max_sequence, qwen.tied_embeddings) == (Bias.QKV, 131072, False)
    biased = huggingface.describe(config("llama", "1 8 2 2 16 32", attention_bias=True))
    assert biased.bias is Bias.QKV
    assert huggingface.describe(config("llama", "1 8 2 2 16 32", mlp_bias=True)).bias is Bias.ALL
    moe = huggingface.describe(PUBLISHED["DeepSeek-V3"][0]).experts
    assert moe == Experts(count=256, per_token=8, ffn=2048, shared_ffn=2048, dense_layers=3)


@pytest.mark.parametrize(
    ("values", "field", "value"),
    [
        ({}, "model_type", None),
        ({"model_type": "mamba"}, "model_type", "mamba"),
        ({"model_type": "llama"}, "hidden_size", None),
        (config("llama", "1 8 2 2 16 32", vocab_size="32"), "vocab_size", "32"),
        (config("llama", "1 8 2 2 16 32", tie_word_embeddings="yes"), "tie_word_embeddings", "yes"),
        (config("qwen3_moe", "2 8 2 2 16 32", num_experts=4, mlp_only_layers=[1]), "mlp_only_layers", "a list"),
    ],
)
def test_what_cannot_be_read_names_the_field(values: dict[str, Any], field: str, value: str | None) -> None:
    with pytest.raises(InvalidInputError) as refused:
        huggingface.describe(values)
    assert (refused.value.field, refused.value.value) == (field, value)


def test_torchtitan_flavours() -> None:
    llama = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256}
    eight = torchtitan.describe({**llama, "ffn_dim_multiplier": 1.3, "multiple_of": 1024})
    assert (eight.ffn, count(eight)) == (14336, 8_030_261_248)
    assert torchtitan.describe(llama).ffn == 11008
    deepseek = {
        "dim": 7168,
        "n_layers": 61,
        "n_heads": 128,
        "vocab_size": 129280,
        "inter_dim": 18432,
        "moe_inter_dim": 2048,
        "n_dense_layers": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "n_activated_experts": 8,
        "q_lora_rank": 1536,
        **LATENT,
    }
    assert count(torchtitan.describe(deepseek)) == pytest.approx(671_026_419_200, rel=1e-6)
    with pytest.raises(InvalidInputError, match="dim"):
        torchtitan.describe({"n_layers": 2})


@pytest.mark.parametrize(
    ("changes", "field", "nearest"),
    [
        ({"hidden_size": 0}, "hidden_size", 1),
        ({"hidden_size": 10**9}, "hidden_size", 1_048_576),
        ({"hidden_size": 4096.0}, "hidden_size", 4096),
        ({"hidden_size": "4096"}, "hidden_size", 4096),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings", 16_777_216),
        ({"intermediate_size": None}, "intermediate_size", None),
        ({"n_shared_experts": 1000}, "n_shared_experts", 512),
        ({"n_routed_experts": float("nan")}, "n_routed_experts", None),
    ],
)
def test_a_number_that_no_descriptor_holds_is_named_as_the_file_names_it(
    changes: dict[str, Any], field: str, nearest: int | None
) -> None:
    values = PUBLISHED["DeepSeek-V3"][0] | changes
    with pytest.raises(InvalidInputError) as refused:
        huggingface.describe(values)
    assert (refused.value.field, refused.value.nearest) == (field, nearest)


def test_a_family_with_experts_says_how_many() -> None:
    """Its library takes a number for granted: read as none it would be another model."""
    values, _ = PUBLISHED["Mixtral-8x7B"]
    with pytest.raises(InvalidInputError, match="num_local_experts=None: is missing"):
        huggingface.describe({name: value for name, value in values.items() if name != "num_local_experts"})
    assert huggingface.describe(values | {"num_local_experts": None}).experts is None


def test_a_long_name_is_cut_and_a_zero_that_means_nothing_is_none() -> None:
    values, _ = PUBLISHED["Llama-3-8B"]
    found = huggingface.describe(values | {"_name_or_path": "路" * 300, "head_dim": 0, "num_key_value_heads": 0})
    assert (len(found.name), found.head_dim, found.kv_heads) == (256, None, 32)
