"""The whole footprint: phases, components, and public failures that an estimate must see."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategy.footprint.settings import CALIBRATION, GIB, LLAMA_8B, LLAMA_70B, setting

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Bias, Experts, Norm, Optimizer, Precision, Recompute, Sharding, TransformerModel
from kuangchao_operator.layers.strategy.footprint.budget import judge, usable_bytes
from kuangchao_operator.layers.strategy.footprint.layout import Layout, outer
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.peaks import peaks
from kuangchao_operator.layers.strategy.footprint.phases import StageFootprint, footprint, state_lines
from kuangchao_operator.layers.strategy.footprint.setting import Loss, Offload, Setting

GPT2_LARGE = TransformerModel(
    layers=36,
    hidden=1280,
    heads=20,
    ffn=5120,
    vocab=50257,
    gated_ffn=False,
    tied_embeddings=True,
    norm=Norm.LAYER,
    bias=Bias.ALL,
    learned_positions=1024,
)


def run(wish: Setting) -> tuple[StageFootprint, ...]:
    return footprint(wish, CALIBRATION)


def fits(wish: Setting, gib: int) -> bool:
    return judge(peaks(wish, CALIBRATION), gib * GIB, CALIBRATION).fits


def phase(stage: StageFootprint, name: str) -> int:
    return next(phase.allocated_bytes for phase in stage.phases if phase.name == name)


wishes = st.builds(
    lambda tensor, pipeline, data, micro, kind, recompute, sharding, backend: setting(
        layout=Layout(tensor=tensor, pipeline=pipeline, data=data),
        micro_batch=micro,
        micro_batches=8,
        precision=kind,
        recompute=recompute,
        sharding=sharding,
        backend=backend,
    ),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 4),
    st.sampled_from(Precision),
    st.sampled_from(Recompute),
    st.sampled_from(Sharding),
    st.sampled_from(sorted(CALIBRATION.backends)),
)


@given(wish=wishes)
def test_components_add_up_and_the_peak_is_that_of_a_phase(wish: Setting) -> None:
    for stage in run(wish):
        parts = stage.parameters_bytes + stage.gradients_bytes + stage.optimizer_bytes + stage.activations_bytes
        assert parts + stage.other_bytes == stage.allocated_bytes == max(p.allocated_bytes for p in stage.phases)
        assert stage.allocated_bytes <= stage.reserved_bytes <= stage.device_bytes
        assert phase(stage, "second step") >= max(phase(stage, "forward"), phase(stage, "backward"))
        assert stage.memory().total_bytes == stage.allocated_bytes


@given(wish=wishes)
def test_equal_settings_give_equal_bytes_and_larger_batches_never_less(wish: Setting) -> None:
    assert [s.canonical() for s in run(wish)] == [s.canonical() for s in run(replace(wish))]
    more = run(replace(wish, micro_batch=wish.micro_batch + 1))
    assert all(after.allocated_bytes >= before.allocated_bytes for before, after in zip(run(wish), more, strict=True))


def test_states_come_with_the_first_update_so_one_step_proves_nothing() -> None:
    """Seen as an OOM in step 2 by users of several frameworks."""
    stage = run(setting(backend="kuangchao"))[0]
    states = 8 * 8_030_261_248
    assert phase(stage, "second step") - max(phase(stage, "forward"), phase(stage, "backward")) == states
    assert stage.arithmetic[0].startswith("parameters: 8,030,261,248 x 4 B (bf16)")


def test_seven_billion_in_half_precision_are_84_gb_line_by_line() -> None:
    """Adam over parameters without fp32 main copies: 14 + 14 + 56."""
    share = Share(sharded=7_000_000_000)
    wish = setting(backend="kuangchao", precision=Precision.FP16_PURE, optimizer=Optimizer.ADAM)
    assert state_lines(share, share, wish, CALIBRATION) == (
        "parameters: 7,000,000,000 x 2 B (fp16-pure) = 14,000,000,000 B (13.0 GiB)",
        "gradients: 7,000,000,000 x 2 B = 14,000,000,000 B (13.0 GiB)",
        "optimizer: 7,000,000,000 x 8 B (adam) = 56,000,000,000 B (52.2 GiB)",
        "states: 14.00 + 14.00 + 56.00 = 84.00 GB",
    )


def test_the_calculation_names_what_divides_a_state() -> None:
    share = Share(sharded=1000, expert=8000)
    layout = Layout(tensor=2, data=16, expert=8, expert_tensor=1, shard_ranks=8)
    lines = state_lines(share, share, setting(layout=layout, sharding=Sharding.OPTIMIZER), CALIBRATION)
    assert lines[0] == "parameters: 1,500 x 2 B (bf16) = 3,000 B (2.9 KiB)"
    assert lines[2] == (
        "optimizer: (500 / 8 ranks + 1,000 of experts / 2 ranks) x (4 B main copy + 8 B (adamw)) = 6,750 B (6.6 KiB)"
    )


@pytest.mark.parametrize("backend", ["kuangchao", "torchtitan"])
def test_sharding_over_few_ranks_may_cost_more_than_it_saves(backend: str) -> None:
    """DeepSpeed#5305: what is whole for a while comes on top, so a higher stage is not always the smaller one."""
    one = setting(backend=backend, layout=Layout(data=1), micro_batches=4)
    assert run(replace(one, sharding=Sharding.FULL))[0].allocated_bytes > run(one)[0].allocated_bytes
    many = replace(one, layout=Layout(data=8))
    assert run(replace(many, sharding=Sharding.FULL))[0].allocated_bytes < run(many)[0].allocated_bytes


def test_the_fixed_part_does_not_shrink_with_the_number_of_ranks() -> None:
    """6B under ZeRO-3: 0.77 GB by an estimator, 13 GB in truth, the same on two and on four GPUs."""
    thousand = run(setting(backend="deepspeed", sharding=Sharding.FULL, layout=Layout(data=1024)))[0]
    assert thousand.allocated_bytes > 3 * GIB
    assert thousand.parameters_bytes + thousand.gradients_bytes + thousand.optimizer_bytes < GIB


def test_offloading_everything_still_takes_what_is_whole_at_once() -> None:
    """7B with parameters and optimizer in main memory: 0.49 GB by an estimator, 20.8 GiB in truth."""
    llama = LLAMA_8B.replace(kv_heads=32, ffn=11008, vocab=32000)
    wish = setting(
        llama, backend="deepspeed", sharding=Sharding.FULL, offload=Offload.PARAMETERS, layout=Layout(data=4)
    )
    stage = run(wish)[0]
    assert stage.parameters_bytes == stage.gradients_bytes == stage.optimizer_bytes == 0
    assert stage.allocated_bytes > 8 * GIB


def test_unfused_attention_and_fp32_logits_break_a_small_model() -> None:
    """GPT-2 large on a V100 of 32 GB: estimated 23 GB by its user, out of memory at 28.8 GiB asking for logits."""
    wish = setting(
        GPT2_LARGE,
        sequence_length=1024,
        micro_batch=4,
        precision=Precision.FP16,
        fused_attention=False,
        dropout=True,
    )
    assert not fits(wish, 32)
    assert fits(replace(wish, fused_attention=True), 32)


def test_seventy_billion_do_not_fit_sixteen_cards_of_32_gb_before_any_activation() -> None:
    llama2 = LLAMA_70B.replace(vocab=32000)
    wish = setting(llama2, backend="fsdp1", sharding=Sharding.FULL, layout=Layout(data=16), recompute=Recompute.FULL)
    assert not fits(wish, 32)
    states = run(wish)[0]
    assert states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes > 63 * GIB
    assert fits(replace(wish, precision=Precision.BF16_PURE), 80)


def test_grouped_products_of_experts_have_a_workspace_of_their_own() -> None:
    model = LLAMA_8B.replace(experts=Experts(count=8, per_token=2, ffn=1024, dense_layers=16))
    wish = setting(model, layout=Layout(pipeline=2), micro_batches=2)
    grouped, apart = peaks(wish, CALIBRATION), peaks(replace(wish, grouped_experts=False), CALIBRATION)
    extra = [one.parts.workspace - other.parts.workspace for one, other in zip(grouped, apart, strict=True)]
    assert extra == [0, CALIBRATION.backends["megatron"].expert_workspace_bytes], "the first stage has none"


def test_the_allocator_decides_where_chunks_of_many_sizes_fragment_it() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#3107: 70B over tensor 4, pipeline 4 x 5 chunks ran out at 58.8 GB in use of 80."""
    wish = setting(
        LLAMA_70B,
        backend="megatron-bridge",
        layout=Layout(tensor=4, pipeline=4, data=2, virtual=5, sequence=True),
        sequence_length=4096,
        micro_batches=16,
        precision=Precision.FP8,
        sharding=Sharding.OPTIMIZER,
        schedule=Schedule.INTERLEAVED,
        loss=Loss.FUSED,
    )
    assert not fits(wish, 80)
    assert fits(replace(wish, allocator="expandable"), 80)


def test_an_uneven_pipeline_is_judged_by_its_fullest_stage() -> None:
    """Eight layers as 1, 2, 2, 3: an average is a third too low."""
    model = LLAMA_8B.replace(layers=8, vocab=1024)
    layout = Layout(pipeline=4, stage_layers=(1, 2, 2, 3))
    held = [stage.parameters_bytes for stage in run(setting(model, layout=layout, micro_batches=4))]
    assert max(held) == held[3]
    assert held[3] > 1.3 * sum(held) / 4


def test_the_allocator_decides_where_interleaving_fragments() -> None:
    """70B on 32 H100 (TP4 PP4 VP5): out of memory in a third of the runs, cured by expandable segments."""
    wish = setting(
        LLAMA_70B,
        sequence_length=4096,
        micro_batches=16,
        layout=Layout(tensor=4, pipeline=4, data=2, virtual=5, sequence=True),
        schedule=Schedule.INTERLEAVED,
        precision=Precision.FP8,
        sharding=Sharding.OPTIMIZER,
        backend="megatron-bridge",
        loss=Loss.FUSED,
    )
    assert not fits(wish, 80)
    assert fits(replace(wish, allocator="expandable"), 80)


def test_logits_that_are_joined_are_as_many_on_each_tensor_rank_as_on_one() -> None:
    def logits(tensor: int, *, joined: bool) -> int:
        wish = setting(layout=Layout(tensor=tensor), micro_batches=1, loss=Loss.PLAIN, logits_joined=joined)
        wider = replace(wish, model=LLAMA_8B.replace(vocab=201_088))
        return run(wider)[0].other_bytes - run(wish)[0].other_bytes

    assert logits(1, joined=True) == logits(1, joined=False) == pytest.approx(4 * logits(4, joined=False), rel=0.01)
    assert logits(4, joined=True) == pytest.approx(logits(1, joined=True), rel=0.01)


def test_logits_stand_on_the_last_stage_only_and_grow_with_the_vocabulary() -> None:
    wish = setting(layout=Layout(pipeline=4), micro_batches=1, loss=Loss.PLAIN)
    wide = replace(wish, model=LLAMA_8B.replace(vocab=201_088))
    first, last = (run(w)[0] for w in (wish, wide)), (run(w)[-1] for w in (wish, wide))
    logits = 2048 * (201_088 - 128_256) * 6
    before, after = last
    grown = after.other_bytes - before.other_bytes
    assert grown == pytest.approx(logits, abs=2**20)
    before, after = first
    assert after.other_bytes == before.other_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"recompute": Recompute.FULL},
        {"optimizer": Optimizer.SGD},
        {"sharding": Sharding.FULL},
        {"layout": Layout(tensor=2, data=8, sequence=True)},
        {"micro_batch": 1},
    ],
    ids=str,
)
def test_every_lever_of_the_user_lowers_the_peak(change: dict[str, Any]) -> None:
    wish = setting(backend="torchtitan", layout=Layout(data=8), micro_batch=4)
    assert run(replace(wish, **change))[0].allocated_bytes < run(wish)[0].allocated_bytes


def test_outer_stages_as_given() -> None:
    layout = Layout(pipeline=4, stage_layers=outer(32, 4, 7, 7))
    assert [len(stage.phases) for stage in run(setting(layout=layout, micro_batches=4))] == [5] * 4


def test_the_verdict_names_stage_need_and_what_is_usable() -> None:
    verdict = judge(peaks(setting(), CALIBRATION), 80 * GIB, CALIBRATION)
    assert not verdict.fits
    assert verdict.reason.startswith("stage 0 needs 1")
    assert verdict.reason.endswith("> 78.7 GiB usable")
    assert usable_bytes(1000, CALIBRATION) == CALIBRATION.visible_permille
