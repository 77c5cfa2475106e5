"""Bytes for each parameter, against the tables that frameworks publish."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategy.footprint.settings import CALIBRATION, setting

from kuangchao_contracts.plan import Optimizer, Precision, Sharding
from kuangchao_operator.layers.strategy.footprint.buffers import bucket_bytes
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.setting import Offload
from kuangchao_operator.layers.strategy.footprint.states import StateMemory, state_memory

DENSE = Share(sharded=7_000_000_000)


def held(precision: Precision, sharding: Sharding, data: int, backend: str, share: Share = DENSE) -> StateMemory:
    wish = setting(precision=precision, sharding=sharding, layout=Layout(data=data), backend=backend)
    return state_memory(share, share, wish, CALIBRATION)


def each(memory: StateMemory, backend: str = "megatron") -> Fraction:
    """Bytes for each parameter while it is updated."""
    total = memory.parameters + memory.gradients + memory.optimizer + memory.casts
    return Fraction(total + memory.updated * CALIBRATION.backends[backend].step_bytes, DENSE.sharded)


def test_seven_billion_in_half_precision_with_adam_and_no_main_weights_is_84_gb() -> None:
    memory = held(Precision.FP16_PURE, Sharding.NONE, 1, "kuangchao")
    assert (memory.parameters, memory.gradients, memory.optimizer) == (14 * 10**9, 14 * 10**9, 56 * 10**9)


@pytest.mark.parametrize("data", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("backend", "precision", "sharding", "whole", "divided"),
    [
        ("megatron", Precision.BF16, Sharding.NONE, 18, 0),
        ("megatron", Precision.BF16, Sharding.OPTIMIZER, 6, 12),
        ("megatron", Precision.FP16, Sharding.NONE, 20, 0),
        ("megatron", Precision.FP16, Sharding.OPTIMIZER, 4, 16),
        ("megatron", Precision.FP32, Sharding.OPTIMIZER, 8, 8),
        ("deepspeed", Precision.FP16, Sharding.GRADIENTS, 2, 18),
        ("deepspeed", Precision.FP16, Sharding.FULL, 0, 18),
        ("torchtitan", Precision.BF16, Sharding.FULL, 0, 16),
        ("kuangchao", Precision.FP32, Sharding.NONE, 20, 0),
    ],
)
def test_bytes_for_each_parameter(
    backend: str, precision: Precision, sharding: Sharding, whole: int, divided: int, data: int
) -> None:
    assert each(held(precision, sharding, data, backend), backend) == whole + Fraction(divided, data)


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [
        (Optimizer.SGD, 0),
        (Optimizer.MOMENTUM, 4),
        (Optimizer.MUON, 4),
        (Optimizer.ADAM, 8),
        (Optimizer.ADAMW_BF16, 4),
        (Optimizer.ADAMW_8BIT, 2),
    ],
)
def test_states_of_each_optimizer(optimizer: Optimizer, size: int) -> None:
    memory = state_memory(DENSE, DENSE, setting(precision=Precision.FP32, optimizer=optimizer), CALIBRATION)
    assert memory.optimizer == size * DENSE.sharded


@pytest.mark.parametrize(
    ("sharding", "offload", "size"),
    [
        (Sharding.GRADIENTS, Offload.OPTIMIZER, 2),
        (Sharding.FULL, Offload.OPTIMIZER, Fraction(2, 8)),
        (Sharding.FULL, Offload.PARAMETERS, 0),
    ],
)
def test_what_main_memory_takes_is_off_the_device(sharding: Sharding, offload: Offload, size: Fraction) -> None:
    """Stages 2 and 3 of ZeRO with offload; what is whole for a while comes on top (`buffers`)."""
    wish = setting(
        precision=Precision.FP16, sharding=sharding, offload=offload, layout=Layout(data=8), backend="deepspeed"
    )
    assert each(state_memory(DENSE, DENSE, wish, CALIBRATION), "deepspeed") == size


def test_frozen_parameters_cost_themselves_only() -> None:
    memory = state_memory(DENSE, Share(), setting(), CALIBRATION)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (2 * DENSE.sharded, 0, 0)


def test_experts_are_shared_by_fewer_ranks_than_dense_parameters() -> None:
    share = Share(sharded=1000, expert=8000)
    layout = Layout(tensor=2, data=16, expert=8, expert_tensor=1)
    wish = setting(layout=layout, sharding=Sharding.OPTIMIZER)
    assert (layout.dense_shards, layout.expert_shards) == (16, 4)
    memory = state_memory(share, share, wish, CALIBRATION)
    assert memory.parameters == 2 * (500 + 1000)
    assert memory.optimizer == -(-500 * 4 // 16) + 250 * 4 + -(-500 * 8 // 16) + 250 * 8


def test_context_parallel_ranks_share_states_as_data_parallel_ones_do() -> None:
    wish = setting(layout=Layout(data=4, context=2), sharding=Sharding.FULL, backend="torchtitan")
    assert each(state_memory(DENSE, DENSE, wish, CALIBRATION)) == Fraction(16, 8)


@given(
    data=st.integers(1, 64),
    precision=st.sampled_from(Precision),
    backend=st.sampled_from(sorted(CALIBRATION.backends)),
    share=st.builds(Share, st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**9)),
)
def test_more_sharding_never_costs_more_states(data: int, precision: Precision, backend: str, share: Share) -> None:
    totals = [
        sum(held(precision, kind, data, backend, share)[:4])
        for kind in (Sharding.NONE, Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.FULL)
    ]
    slack = 16  # each component is rounded up
    assert all(later <= earlier + slack for earlier, later in pairwise(totals))


@pytest.mark.parametrize(
    ("precision", "bytes_each"),
    [
        (Precision.FP32, (4, 4, 0)),
        (Precision.BF16, (4, 4, 2)),
        (Precision.FP16, (4, 4, 2)),
        (Precision.BF16_PURE, (2, 2, 0)),
        (Precision.FP16_PURE, (2, 2, 0)),
        (Precision.FP8, (2, 4, 6)),
    ],
)
@pytest.mark.parametrize("backend", ["kuangchao", "kuangchao-cpu"])
def test_this_executors_bytes_for_each_parameter(
    precision: Precision, bytes_each: tuple[int, int, int], backend: str
) -> None:
    """Parameter, gradient, and copies in another format: bf16 and fp16 are torch's autocast over fp32 parameters."""
    ours = CALIBRATION.backends[backend].states[precision]
    assert (ours.parameter, ours.gradient, ours.main + ours.cast) == bytes_each


@pytest.mark.parametrize(("shard_ranks", "divided"), [(0, 64), (8, 8), (64, 64), (1, 1)])
def test_hybrid_sharding_divides_over_its_groups_only(shard_ranks: int, divided: int) -> None:
    """FSDP2 with a mesh of replicas x shards: 16 B for each parameter over the shards, whatever the replicas are."""
    layout = Layout(data=32, context=2, shard_ranks=shard_ranks)
    wish = setting(layout=layout, sharding=Sharding.FULL, backend="torchtitan")
    assert (layout.replicas, layout.dense_shards) == (64, divided)
    assert each(state_memory(DENSE, DENSE, wish, CALIBRATION)) == Fraction(16, divided)


@pytest.mark.parametrize(("shard_ranks", "expert_shards"), [(0, 4), (8, 2), (4, 1), (1, 1)])
def test_hybrid_sharding_leaves_fewer_shards_for_experts(shard_ranks: int, expert_shards: int) -> None:
    layout = Layout(tensor=2, data=16, expert=8, expert_tensor=1, shard_ranks=shard_ranks)
    assert layout.expert_shards == expert_shards
    memory = state_memory(
        Share(expert=8000), Share(expert=8000), setting(layout=layout, sharding=Sharding.OPTIMIZER), CALIBRATION
    )
    assert memory.optimizer == 1000 * 12 // expert_shards


def test_replicas_of_hybrid_sharding_still_reduce_gradients() -> None:
    wish = setting(layout=Layout(data=8, shard_ranks=1), sharding=Sharding.OPTIMIZER, backend="kuangchao")
    assert bucket_bytes(1000, wish, CALIBRATION.backends["kuangchao"]) == 1000
    alone = setting(layout=Layout(data=1), sharding=Sharding.OPTIMIZER, backend="kuangchao")
    assert bucket_bytes(1000, alone, CALIBRATION.backends["kuangchao"]) == 0
