"""What layers keep, against Korthikanti et al. 2022 and the laws that recomputation and the axes obey."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategy.footprint.settings import CALIBRATION, GIB, LLAMA_8B, gpt, setting

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Experts, LatentAttention, Precision, Recompute
from kuangchao_operator.layers.strategy.footprint.activations import hidden_bytes, layer_memory
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.schedules import in_flight
from kuangchao_operator.layers.strategy.footprint.setting import Recomputed, Setting
from kuangchao_operator.layers.strategy.footprint.stages import stages

MEGATRON = CALIBRATION.backends["megatron"]
EIGHT = Layout(tensor=8)
UNFUSED = {"fused_attention": False, "dropout": True}


def kept(wish: Setting, *, moe: bool = False) -> int:
    return layer_memory(wish, CALIBRATION.backends[wish.backend], moe=moe).kept


def test_the_formulas_of_the_paper_hold_exactly() -> None:
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    model = gpt(48, h, a)
    alone = setting(model, micro_batch=b, layout=EIGHT, **UNFUSED)
    assert kept(alone) == s * b * (10 * h + (24 * h + 5 * a * s) // t)
    sequence = setting(model, micro_batch=b, layout=Layout(tensor=t, sequence=True), **UNFUSED)
    assert kept(sequence) == s * b * (34 * h + 5 * a * s) // t
    selective = setting(model, micro_batch=b, layout=sequence.layout, recompute=Recompute.SELECTIVE, **UNFUSED)
    assert kept(selective) == 34 * s * b * h // t
    full = setting(model, micro_batch=b, layout=sequence.layout, recompute=Recompute.FULL, **UNFUSED)
    assert kept(full) == 2 * s * b * h // t


@pytest.mark.parametrize(
    ("model", "micro_batch", "pipeline", "virtual", "selective", "gib"),
    [
        (gpt(48, 6144, 64), 4, 1, 1, False, 59.25),
        (gpt(48, 6144, 64), 4, 1, 1, True, 9.5625),
        (gpt(96, 12288, 96), 1, 8, 3, False, 66.84375),
        (gpt(96, 12288, 96), 1, 8, 3, True, 12.3515625),
        (gpt(105, 20480, 128), 1, 35, 3, True, 23.076171875),
        (gpt(128, 25600, 160), 1, 64, 1, False, 131.25),
        (gpt(128, 25600, 160), 1, 64, 1, True, 26.5625),
    ],
)
def test_the_first_stage_of_the_papers_models(
    model: Any, micro_batch: int, pipeline: int, virtual: int, selective: bool, gib: float
) -> None:
    """Figure 1 of the paper: the first stage, interleaving included."""
    wish = setting(
        model,
        micro_batch=micro_batch,
        micro_batches=4 * pipeline,
        layout=Layout(tensor=8, pipeline=pipeline, virtual=virtual, sequence=selective),
        recompute=Recompute.SELECTIVE if selective else Recompute.NONE,
        schedule=Schedule.INTERLEAVED if virtual > 1 else Schedule.ONE_F_ONE_B,
        **UNFUSED,
    )
    mask = hidden_bytes(wish, MEGATRON) // 2
    first = stages(wish, MEGATRON)[0]
    embedded = in_flight(wish.schedule, 0, pipeline, virtual, wish.micro_batches)[0]
    assert first.activations - mask * embedded == gib * GIB


def test_grouped_queries_and_gates_have_their_own_widths() -> None:
    tokens, h, f, kv = 2048, 4096, 14336, 1024
    norms, attention, ffn = 8 * h, 2 * (h + 2 * kv) + 2 * h + 4 * 32, 2 * 3 * f
    assert kept(setting()) == tokens * (norms + attention + ffn)


def test_fp8_keeps_inputs_of_products_in_one_byte() -> None:
    tokens, h, f = 2048, 4096, 14336
    saved = tokens * (2 * h + f - h)  # outputs of the norms and of the gate; attention's output is kept twice
    assert kept(setting()) - kept(setting(precision=Precision.FP8)) == saved


def test_by_operator_every_other_product_is_kept() -> None:
    wish = setting(backend="torchtitan", recompute=Recompute.SELECTIVE, modules=frozenset({Recomputed.OPERATORS}))
    h, f, kv = 4096, 14336, 1024
    query_value_attention_gate_down_input = 2 * (h + kv + h + f + h + h)
    assert kept(wish) == 2048 * (query_value_attention_gate_down_input + 4 * 32)


def test_a_token_costs_what_the_experts_that_it_visits_keep() -> None:
    model = LLAMA_8B.replace(experts=Experts(count=64, per_token=6, ffn=1408, shared_ffn=2816))
    plain = kept(setting(LLAMA_8B.replace(ffn=1)))
    routed = 6 * (2 * 2 * 4096 + 3 * 2 * 1408)  # in and out of each expert, and within
    assert kept(setting(model), moe=True) - plain == 2048 * (routed + 3 * 2 * 2816 + 2 * 4 * 64 - 6)
    hot = setting(model, expert_imbalance_permille=1500)
    assert kept(hot, moe=True) - kept(setting(model), moe=True) == 2048 * routed // 2


def test_latent_attention_can_be_made_again_from_its_latents() -> None:
    latent = LatentAttention(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    model = LLAMA_8B.replace(latent_attention=latent, kv_heads=None)
    whole = setting(model)
    parts = setting(model, recompute=Recompute.SELECTIVE, modules=frozenset({Recomputed.LATENT}))
    assert kept(whole) - kept(parts) == 2048 * 2 * 32 * (2 * 192 + 128)


settings = st.builds(
    lambda tensor, sequence, micro, fused, dropout, backend: setting(
        layout=Layout(tensor=tensor, sequence=sequence and tensor > 1),
        micro_batch=micro,
        fused_attention=fused,
        dropout=dropout,
        backend=backend,
    ),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.integers(1, 8),
    st.booleans(),
    st.booleans(),
    st.sampled_from(sorted(CALIBRATION.backends)),
)


@given(wish=settings)
def test_recomputing_more_never_keeps_more(wish: Setting) -> None:
    full, selective, none = (kept(replace(wish, recompute=kind)) for kind in reversed(Recompute))
    assert full <= selective <= none


@given(wish=settings)
def test_more_ranks_never_keep_more_and_more_tokens_never_less(wish: Setting) -> None:
    wider = replace(wish, layout=replace(wish.layout, tensor=2 * wish.layout.tensor))
    context = replace(wish, layout=replace(wish.layout, context=2))
    more = replace(wish, micro_batch=wish.micro_batch + 1)
    assert kept(wider) <= kept(wish)
    assert kept(context) <= kept(wish)
    assert kept(more) > kept(wish)


def test_workers_of_ours_keep_the_keys_and_values_of_whole_sequences() -> None:
    """Of Llama 3 8B a context rank of two keeps half of all else, and as many keys and values as one rank."""
    for backend, more in (("kuangchao", 1), ("torchtitan", 0)):
        alone = setting(LLAMA_8B, layout=Layout(data=2), backend=backend)
        halves = replace(alone, layout=Layout(context=2))
        permille = CALIBRATION.backends[backend].activation_permille
        keys_and_values = 2 * 1024 * 2 * halves.tokens
        assert 1000 * (2 * kept(halves) - kept(alone)) == pytest.approx(2 * more * permille * keys_and_values, abs=4000)
