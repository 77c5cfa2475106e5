"""A step's time: what makes it longer, what its parts are, and the bytes of some settings that must not change."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategy.timing.machines import GPU, HARDWARE, LLAMA, changed, machine, setting

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Adapter, Experts, Precision, Recompute, Sharding
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing.flops import operations
from kuangchao_operator.layers.strategy.timing.stage import stage_times
from kuangchao_operator.layers.strategy.timing.step import StepTime, step_time

MOE = LLAMA.replace(experts=Experts(count=8, per_token=2, ffn=4096))


def time(one: Setting, fabric: Fabric | None = None, nodes: int = 8) -> StepTime:
    return step_time(one, machine(nodes, fabric=fabric), HARDWARE)


def layout(**sizes: Any) -> dict[str, Layout]:
    return {"layout": Layout(**sizes)}


@given(
    tensor=st.sampled_from([1, 2, 8]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 4]),
    context=st.sampled_from([1, 2]),
    sharding=st.sampled_from(Sharding),
    recompute=st.sampled_from(Recompute),
    schedule=st.sampled_from(Schedule),
    moe=st.booleans(),
)
def test_the_parts_are_the_step_and_hardware_never_does_less_than_the_model(
    tensor: int,
    pipeline: int,
    data: int,
    context: int,
    sharding: Sharding,
    recompute: Recompute,
    schedule: Schedule,
    moe: bool,
) -> None:
    virtual = 2 if pipeline > 1 and schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_V) else 1
    sizes = Layout(tensor=tensor, pipeline=pipeline, data=data, context=context, virtual=virtual, sequence=tensor > 1)
    one = setting(MOE if moe else LLAMA, layout=sizes, sharding=sharding, recompute=recompute, schedule=schedule)
    found = time(one)
    assert found.step_us == sum(found[1:8])
    assert min(found) >= 0
    assert 0 < found.mfu_ppm <= found.hfu_ppm < 1_000_000
    assert found.bubble_ppm < 1_000_000
    assert (found.tensor_us > 0) == (tensor > 1)
    assert (found.pipeline_us > 0) == (pipeline > 1)


@pytest.mark.parametrize(
    "longer",
    [
        [{"micro_batches": n} for n in (4, 8, 16)],
        [{"sequence_length": n} for n in (2048, 4096, 8192)],
        [{"recompute": kind} for kind in (Recompute.NONE, Recompute.FULL)],
        [{"fused_attention": fused} for fused in (True, False)],
        [{"precision": kind} for kind in (Precision.BF16, Precision.FP32)],
        [
            {"schedule": kind, **layout(pipeline=4)}
            for kind in (Schedule.ZERO_BUBBLE_H2, Schedule.ZERO_BUBBLE_H1, Schedule.ONE_F_ONE_B)
        ],
        [{"sharding": Sharding.FULL, "micro_batches": n, "micro_batch": 8 // n, **layout(data=32)} for n in (1, 2, 8)],
    ],
    ids=["batches", "sequence", "recompute", "attention", "precision", "schedule", "gathers"],
)
def test_more_work_takes_longer(longer: list[dict[str, Any]]) -> None:
    times = [time(setting(**changes)).step_us for changes in longer]
    assert all(first < second for first, second in pairwise(times))


def test_what_is_divided_further_is_done_sooner_but_less_efficiently() -> None:
    found = [time(setting(**layout(tensor=n, sequence=n > 1))) for n in (1, 2, 4, 8)]
    assert all(more.step_us < less.step_us and more.mfu_ppm < less.mfu_ppm for less, more in pairwise(found))


def test_logits_that_are_joined_cost_their_way_and_are_all_read() -> None:
    split, joined = (time(setting(**layout(tensor=8), logits_joined=joined)) for joined in (False, True))
    assert joined.tensor_us > split.tensor_us
    assert joined.compute_us > split.compute_us
    alone, same = (time(setting(**layout(), logits_joined=joined)) for joined in (False, True))
    assert alone == same


def test_small_micro_batches_are_less_efficient() -> None:
    small = time(setting(sequence_length=256, micro_batch=1, micro_batches=16, **layout(tensor=8)))
    large = time(setting(sequence_length=256, micro_batch=16, micro_batches=1, **layout(tensor=8)))
    assert small.compute_us > large.compute_us


def test_tensor_parallelism_across_nodes_is_penalised() -> None:
    slow = Fabric(island=8, nic_bytes_per_second=10**9)
    inside = time(setting(**layout(tensor=8, sequence=True)), slow)
    across = time(setting(**layout(tensor=16, sequence=True)), slow)
    assert across.tensor_us > 4 * inside.tensor_us
    assert across.step_us > inside.step_us


def test_a_node_of_pairs_makes_wide_tensor_parallelism_slow() -> None:
    pairs = Fabric(island=2)
    assert time(setting(**layout(tensor=4)), pairs).tensor_us > 3 * time(setting(**layout(tensor=4))).tensor_us
    assert time(setting(**layout(tensor=2)), pairs).tensor_us == time(setting(**layout(tensor=2))).tensor_us


def test_experts_on_other_nodes_cost_their_exchange() -> None:
    near = time(setting(MOE, **layout(expert=8, data=8)))
    assert near.expert_us > 0
    assert time(setting(MOE, **layout(expert=8, data=8)), Fabric(island=2)).expert_us > near.expert_us
    assert time(setting(MOE, **layout(data=8))).expert_us == 0


def test_context_parallelism_hides_behind_attention_when_sequences_are_long() -> None:
    short = time(setting(sequence_length=1024, **layout(context=8)))
    long = time(setting(sequence_length=131072, **layout(context=8)))
    assert short.context_us > 0
    assert long.context_us * short.compute_us < short.context_us * long.compute_us


@pytest.mark.parametrize(
    ("schedule", "virtual", "share"),
    [(Schedule.GPIPE, 1, 3 / 8), (Schedule.ONE_F_ONE_B, 1, 3 / 8), (Schedule.INTERLEAVED, 2, 3 / 16)],
)
def test_bubbles_are_those_of_the_papers(schedule: Schedule, virtual: int, share: float) -> None:
    """(p-1)/m, and (p-1)/(m v) interleaved, of the ideal time (Narayanan et al. 2021); ends of the model left out."""
    plain = LLAMA.replace(vocab=1)
    found = time(setting(plain, schedule=schedule, **layout(pipeline=4, virtual=virtual)))
    ideal = found.compute_us
    assert found.bubble_ppm * found.step_us / 1e6 == pytest.approx(share * ideal, rel=0.01)


def test_a_heavy_last_stage_does_not_fill_the_time_before_its_first_pass() -> None:
    """Four thin layers under a large vocabulary: the last stage has weight gradients enough, but only afterwards."""
    thin = LLAMA.replace(layers=4, hidden=1024, ffn=2816, heads=8)
    waits = setting(thin, micro_batches=8, schedule=Schedule.ZERO_BUBBLE_H1, **layout(pipeline=4))
    assert time(waits).bubble_ppm > 0


def test_the_fullest_stage_sets_the_pace() -> None:
    even = time(setting(**layout(pipeline=4, stage_layers=(8, 8, 8, 8))))
    uneven = time(setting(**layout(pipeline=4, stage_layers=(7, 7, 7, 11))))
    assert uneven.step_us > even.step_us
    assert uneven.compute_us > 1.2 * even.compute_us


def test_reductions_hide_behind_the_backward_pass_as_far_as_the_framework_lets_them() -> None:
    one = setting(**layout(data=64), sharding=Sharding.OPTIMIZER)
    shown, hidden = (step_time(one, machine(), changed(data_overlap_permille=share)).data_us for share in (0, 900))
    assert hidden == pytest.approx(shown / 10, rel=0.01)


def test_hybrid_sharding_gathers_inside_the_node() -> None:
    everywhere = time(setting(sharding=Sharding.FULL, micro_batches=4, **layout(data=64)))
    inside = time(setting(sharding=Sharding.FULL, micro_batches=4, **layout(data=64, shard_ranks=8)))
    assert inside.data_us != everywhere.data_us
    slow = Fabric(island=8, nic_bytes_per_second=10**8)
    assert (
        time(setting(sharding=Sharding.FULL, micro_batches=64, **layout(data=64, shard_ranks=8)), slow).step_us
        < time(setting(sharding=Sharding.FULL, micro_batches=64, **layout(data=64)), slow).step_us
    )


def test_sharded_states_are_updated_by_everybody_once() -> None:
    whole = time(setting(**layout(data=8)))
    shared = time(setting(sharding=Sharding.OPTIMIZER, **layout(data=8)))
    assert shared.optimizer_us - 1000 == pytest.approx((whole.optimizer_us - 1000) / 8, rel=0.01)


def test_adapters_and_frozen_layers_spare_gradients() -> None:
    whole, adapted = time(setting()), time(setting(LLAMA.replace(adapter=Adapter(rank=8))))
    still = time(setting(LLAMA.replace(frozen_layers=31)))
    assert still.step_us < adapted.step_us < whole.step_us


def test_launching_kernels_can_take_longer_than_running_them() -> None:
    tiny = setting(LLAMA.replace(hidden=64, ffn=64, heads=4, kv_heads=4), sequence_length=16)
    waiting = step_time(tiny, machine(), changed(host_forward_us=1000))
    assert waiting.compute_us >= 8 * 32 * 2500
    assert time(tiny).compute_us < waiting.compute_us / 4
    large = setting(sequence_length=65536)
    assert step_time(large, machine(), changed(host_forward_us=1000)).compute_us == time(large).compute_us


def test_ranks_that_meet_at_every_collective_wait_for_the_slowest() -> None:
    tiny = LLAMA.replace(hidden=64, ffn=64, heads=8, kv_heads=8)
    alone, met = (
        step_time(setting(tiny, sequence_length=16, **layout(tensor=n)), machine(), changed(host_forward_us=10_000))
        for n in (1, 8)
    )
    assert met.compute_us + met.tensor_us == pytest.approx(1.3 * alone.compute_us, rel=0.01)


def test_older_collectives_leave_part_of_a_node_s_adapters_idle() -> None:
    one = setting(**layout(tensor=4, data=16), sharding=Sharding.OPTIMIZER)
    times = [
        step_time(one, machine(), changed(partial_permille=share, data_overlap_permille=0)).data_us
        for share in (500, 1000)
    ]
    assert times[0] == pytest.approx(2 * times[1], rel=0.05)
    whole = setting(**layout(tensor=8, data=8), sharding=Sharding.OPTIMIZER)
    assert len({step_time(whole, machine(), changed(partial_permille=share)).data_us for share in (500, 1000)}) == 1


def test_mfu_is_operations_over_time_and_peak() -> None:
    one = setting(recompute=Recompute.FULL, **layout(data=2))
    found, done = time(one), operations(one)
    able = GPU.peak(Precision.BF16) * 2 * found.step_us / 1e6
    assert found.mfu_ppm == pytest.approx(1e6 * done.model / able, abs=1)
    assert found.hfu_ppm == pytest.approx(1e6 * done.hardware / able, abs=1)


def test_stage_times_are_one_micro_batch_of_each_chunk() -> None:
    one = setting(schedule=Schedule.INTERLEAVED, **layout(pipeline=4, virtual=2, tensor=2))
    found = stage_times(one, machine(), HARDWARE)
    assert [(chunk.stage, chunk.chunk) for chunk in found] == [(s, c) for s in range(4) for c in range(2)]
    middle = [chunk for chunk in found if (chunk.stage, chunk.chunk) not in ((0, 0), (3, 1))]
    assert len({chunk[2:] for chunk in middle}) == 1
    assert found[-1].forward_us > middle[0].forward_us, "the output layer is on the last chunk"
    assert middle[0].send_bytes == 4096 * 4096 * 2 // 2
    stage = sum(sum(chunk[2:5]) for chunk in found if chunk.stage == 3)
    alone = time(replace(one, micro_batches=16)).compute_us + time(replace(one, micro_batches=16)).tensor_us
    assert 16 * stage == pytest.approx(alone, rel=0.001)
    assert {chunk.send_us for chunk in stage_times(setting(), machine(), HARDWARE)} == {0}


GOLDEN = {
    "one device": setting(),
    "4D, interleaved, recomputed": setting(
        layout=Layout(tensor=4, pipeline=4, context=2, data=2, virtual=2, sequence=True),
        schedule=Schedule.INTERLEAVED,
        sharding=Sharding.OPTIMIZER,
        recompute=Recompute.FULL,
    ),
    "experts over nodes, fully sharded": setting(
        MOE, layout=Layout(expert=8, data=64, shard_ranks=16), sharding=Sharding.FULL, micro_batches=2
    ),
    "zero bubble, uneven": setting(
        layout=Layout(pipeline=4, data=2, stage_layers=(8, 9, 9, 6)), schedule=Schedule.ZERO_BUBBLE_H1
    ),
    "adapters, unfused": setting(LLAMA.replace(adapter=Adapter(rank=8), frozen_layers=4), fused_attention=False),
}
EXPECTED = {
    "one device": (24876331, 24554121, 0, 0, 0, 0, 0, 322210, 0, 677987, 677987),
    "4D, interleaved, recomputed": (1710125, 1304587, 108762, 1637, 0, 237130, 51333, 6676, 133009, 308198, 404639),
    "experts over nodes, fully sharded": (6237171, 4596310, 0, 0, 154676, 0, 1446987, 39198, 0, 485717, 485717),
    "zero bubble, uneven": (7561999, 6478623, 0, 0, 0, 946074, 45493, 91809, 124101, 557585, 557585),
    "adapters, unfused": (24621551, 24619927, 0, 0, 0, 0, 0, 1624, 0, 456187, 456187),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_times_are_the_same_on_every_machine(name: str) -> None:
    """Integers made of floats by + - * / alone: equal on any machine and Python, until the model itself changes."""
    assert tuple(time(GOLDEN[name])) == EXPECTED[name]
