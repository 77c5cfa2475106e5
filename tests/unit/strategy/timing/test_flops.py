"""Operations of a step against the published formulas and figures."""

import pytest
from bench.planner.search import DEEPSEEK, MIXTRAL
from tests.unit.strategy.footprint.settings import gpt
from tests.unit.strategy.timing.machines import LLAMA, setting

from kuangchao_contracts.plan import Adapter, Recompute, TransformerModel
from kuangchao_operator.layers.strategy.footprint import parameters
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Recomputed, Setting
from kuangchao_operator.layers.strategy.timing.flops import layer_weights, matrices, operations


def of_gpt(layers: int, hidden: int, heads: int, batch: int, recompute: Recompute = Recompute.NONE) -> Setting:
    return setting(gpt(layers, hidden, heads), sequence_length=2048, micro_batches=batch, recompute=recompute)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch"), [(48, 6144, 64, 4), (96, 12288, 96, 64), (128, 25600, 160, 512)]
)
def test_a_dense_gpt_is_the_published_formula(layers: int, hidden: int, heads: int, batch: int) -> None:
    """Narayanan et al. 2021, 72 B s L h^2 (1 + s/6h + V/12hL); 96 and V/16hL with full recomputation."""
    s, h, layer_count, vocab = 2048, hidden, layers, 51200
    needed = operations(of_gpt(layers, hidden, heads, batch))
    assert needed.model == needed.hardware
    assert needed.model == 72 * batch * s * layer_count * h * h + 12 * batch * s * s * layer_count * h + (
        6 * batch * s * h * vocab
    )
    full = operations(of_gpt(layers, hidden, heads, batch, Recompute.FULL))
    assert full.model == needed.model
    assert full.hardware == 96 * batch * s * layer_count * h * h + 16 * batch * s * s * layer_count * h + (
        6 * batch * s * h * vocab
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch", "devices", "seconds", "percent"),
    [
        (48, 6144, 64, 4, 8, 1.10, 41.5),
        (96, 12288, 96, 64, 64, 13.75, 51.4),
        (105, 20480, 128, 280, 280, 37.83, 56.0),
        (128, 25600, 160, 512, 512, 71.49, 56.3),
    ],
    ids=["22B", "175B", "530B", "1T"],
)
def test_published_times_give_the_published_mfu(
    layers: int, hidden: int, heads: int, batch: int, devices: int, seconds: float, percent: float
) -> None:
    """Korthikanti et al. 2022, table 5, A100 (312 T/s)."""
    done = operations(of_gpt(layers, hidden, heads, batch)).model
    assert 100 * done / (seconds * devices * 312e12) == pytest.approx(percent, abs=0.3)


def test_only_the_experts_of_a_token_work() -> None:
    """Mixtral 8x7B has 12.9 B active of 46.7 B parameters; DeepSeek-V3 37 B of 671 B. Lookups count nothing."""
    for model, active in ((MIXTRAL, 12.9e9), (DEEPSEEK, 37.5e9)):
        dense = parameters.moe_layers(model, model.layers)
        found = dense * layer_weights(model, moe=True) + (model.layers - dense) * layer_weights(model, moe=False)
        assert found + 2 * model.vocab * model.hidden == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, gpt(4, 512, 8)])
def test_matrices_of_a_dense_layer_are_its_parameters(model: TransformerModel) -> None:
    share = parameters.layer(model.replace(bias="none"), moe=False)
    norms = 2 * model.hidden * (1 if model.gated_ffn else 2)
    latents = 0 if model.latent_attention is None else 1536 + 512
    assert sum(m.weights for m in matrices(model, moe=False)) == share.total - norms - latents


def test_frozen_weights_need_no_gradients() -> None:
    whole = operations(setting()).model
    still = operations(setting(LLAMA.replace(frozen_layers=32))).model
    adapted = operations(setting(LLAMA.replace(adapter=Adapter(rank=16)))).model
    assert still < adapted < whole
    assert 2 / 3 < adapted / whole < 3 / 4, "attention scores have gradients on both sides"


def test_recomputation_costs_hardware_operations_only_where_something_is_done_again() -> None:
    def again(**changes: object) -> int:
        done = operations(setting(**changes))
        return done.hardware - done.model

    core = frozenset({Recomputed.CORE_ATTENTION})
    assert again(recompute=Recompute.NONE) == 0
    scores = again(recompute=Recompute.SELECTIVE, modules=core)
    assert scores == 8 * 4096 * 32 * 4 * 4096 * 4096
    ffn = again(recompute=Recompute.SELECTIVE, modules=frozenset({Recomputed.FFN}))
    assert 0 < scores < ffn < again(recompute=Recompute.FULL)


def test_the_batch_is_that_of_all_data_parallel_ranks() -> None:
    one = operations(setting())
    assert operations(setting(layout=Layout(data=4))).model == 4 * one.model
    assert operations(setting(layout=Layout(tensor=4, pipeline=2, context=2))).model == one.model
