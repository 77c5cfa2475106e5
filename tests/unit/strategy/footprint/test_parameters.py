"""Counting: what the axes divide, what adapters and frozen layers leave to train."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategy.footprint.settings import CALIBRATION, LLAMA_8B, setting

from kuangchao_contracts.plan import Adapter, Experts, LatentAttention, TransformerModel
from kuangchao_operator.layers.strategy.footprint import parameters
from kuangchao_operator.layers.strategy.footprint.layout import ImpossibleLayoutError, Layout, even, outer, pieces
from kuangchao_operator.layers.strategy.footprint.stages import stages
from kuangchao_operator.layers.strategy.footprint.states import on_rank

TITAN = CALIBRATION.backends["torchtitan"]
MOE = Experts(count=8, per_token=2, ffn=512, shared_ffn=256, dense_layers=1)


@st.composite
def models(draw: st.DrawFn) -> TransformerModel:
    latent = LatentAttention(query_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8)
    return TransformerModel(
        layers=draw(st.integers(4, 40)),
        hidden=256,
        heads=16,
        kv_heads=draw(st.sampled_from([4, 16])),
        ffn=draw(st.sampled_from([512, 1000])),
        vocab=draw(st.integers(100, 5000)),
        gated_ffn=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        bias=draw(st.sampled_from(["none", "qkv", "all"])),
        norm=draw(st.sampled_from(["rms", "layer"])),
        experts=draw(st.sampled_from([None, MOE, MOE.replace(every=2, dense_layers=0)])),
        latent_attention=draw(st.sampled_from([None, latent])),
    )


@given(model=models(), pipeline=st.sampled_from([1, 2, 4]), virtual=st.sampled_from([1, 2]))
def test_stages_hold_the_model_once_and_a_tied_output_layer_twice(
    model: TransformerModel, pipeline: int, virtual: int
) -> None:
    chunks = virtual if pipeline > 1 and model.layers >= 2 * pipeline else 1
    layout = Layout(pipeline=pipeline, virtual=chunks)
    wish = setting(model, layout=layout, schedule="interleaved" if chunks > 1 else "1f1b", micro_batches=8)
    held = sum(stage.held.total for stage in stages(wish, TITAN))
    copy = model.vocab * model.hidden if model.tied_embeddings and pipeline > 1 else 0
    assert held == parameters.count(model) + copy


@given(model=models(), tensor=st.sampled_from([1, 2, 4, 8]), expert=st.sampled_from([1, 2, 4]))
def test_more_tensor_or_expert_parallelism_never_raises_what_a_rank_holds(
    model: TransformerModel, tensor: int, expert: int
) -> None:
    def held(t: int, e: int) -> int:
        share = parameters.run(model, 0, model.layers).plus(parameters.head(model, model.vocab))
        return on_rank(share, setting(model, layout=Layout(tensor=t, expert=e, data=8))).total

    assert held(2 * tensor, expert) <= held(tensor, expert)
    assert held(tensor, 2 * expert) <= held(tensor, expert)


def test_tensor_parallelism_leaves_norms_and_router_whole_and_experts_to_their_own_axes() -> None:
    model = TransformerModel(layers=1, hidden=64, heads=4, ffn=128, vocab=100, experts=MOE.replace(dense_layers=0))
    each = parameters.layer(model, moe=True)
    assert each == parameters.Share(
        sharded=4 * 64 * 64 + 3 * 64 * 256, replicated=2 * 64 + 64 * 8, expert=8 * 3 * 64 * 512
    )
    assert each.per_rank(2, 4) == parameters.Share(each.sharded // 2, each.replicated, each.expert // 4)


def test_adapters_alone_are_trained() -> None:
    lora = LLAMA_8B.replace(adapter=Adapter(rank=16))
    attention = 16 * ((4096 + 6144) + (4096 + 4096))
    ffn = 16 * ((4096 + 2 * 14336) + (14336 + 4096))
    assert parameters.trainable_count(lora) == 32 * (attention + ffn)
    assert parameters.count(lora) == parameters.count(LLAMA_8B) + 32 * (attention + ffn)
    narrow = LLAMA_8B.replace(adapter=Adapter(rank=16, attention_only=True))
    assert parameters.trainable_count(narrow) == 32 * attention


def test_frozen_layers_have_no_gradients_and_take_the_embedding_with_them() -> None:
    frozen = LLAMA_8B.replace(frozen_layers=30)
    two = 2 * parameters.layer(LLAMA_8B, moe=False).total
    assert parameters.trainable_count(frozen) == two + 4096 + 128256 * 4096
    assert parameters.count(frozen) == parameters.count(LLAMA_8B)


@pytest.mark.parametrize(
    ("layers", "count", "sizes"),
    [(8, 4, (2, 2, 2, 2)), (6, 8, (0, 1, 1, 1, 1, 1, 1, 0)), (6, 4, (1, 2, 2, 1)), (126, 8, (15, *[16] * 6, 15))],
)
def test_the_even_cut_counts_embedding_and_output_layer_where_it_must(
    layers: int, count: int, sizes: tuple[int, ...]
) -> None:
    assert even(layers, count) == sizes


@given(layers=st.integers(2, 200), count=st.integers(1, 32))
def test_an_even_cut_loses_no_layer(layers: int, count: int) -> None:
    """Layers that are silently lost were seen with 80 on 16 x 2 pieces and 30 on 4."""
    try:
        sizes = even(layers, count)
    except ImpossibleLayoutError:
        assert layers + 2 < 2 * count
    else:
        assert sum(sizes) == layers
        assert max(sizes) - min(sizes) <= 2


def test_given_outer_stages() -> None:
    assert outer(12, 4, 2, 2) == (2, 4, 4, 2)
    with pytest.raises(ImpossibleLayoutError):
        outer(12, 4, 2, 3)
    with pytest.raises(ImpossibleLayoutError):
        pieces(12, Layout(pipeline=4, stage_layers=(1, 2, 3)))


def test_a_folded_pipeline_ends_where_it_began() -> None:
    cut = pieces(8, Layout(pipeline=4, virtual=2), folded=True)
    assert [tuple(piece.first for piece in stage) for stage in cut] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert cut[0][0].embedding
    assert cut[0][1].head
