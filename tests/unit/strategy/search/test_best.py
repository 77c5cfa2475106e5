"""The search against trying everything: it skips most of the space and still finds the best."""

from dataclasses import replace
from typing import Any

import pytest

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import (
    DeviceShape,
    Experts,
    MeasuredModel,
    Parallelism,
    PlanRequest,
    Precision,
    Sharding,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.search.layouts import layouts, sketches
from kuangchao_operator.layers.strategy.search.rank import Scored, key
from kuangchao_operator.layers.strategy.search.trial import Trial, trial
from kuangchao_operator.layers.strategy.search.variants import pipelines, savings
from kuangchao_operator.layers.strategy.shipped import knowledge

GIB = 2**30
LLAMA_1B = TransformerModel(layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=128256)
LLAMA_8B = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA_13B = TransformerModel(layers=40, hidden=5120, heads=40, ffn=13824, vocab=32000)
UNEVEN = LLAMA_8B.replace(layers=30)
SIZES = MeasuredModel(parameters=2_500_000_000, activation_bytes_per_sample=10_000_000_000)
"""With its optimizer sharded two samples fit at once, without one; sharding less comes first where no time is known."""
MOE = LLAMA_1B.replace(experts=Experts(count=8, per_token=2, ffn=4096))
ETHERNET = Fabric(island=8, nics=1, nic_bytes_per_second=12_500_000_000)
"""Nodes of eight GPUs that share 100 Gbit/s."""
PAIRS = ETHERNET.replace(island=2)
DATA_ONLY = {"tensor": 1, "pipeline": 1, "context": 1}
H100, UNKNOWN = "NVIDIA H100 80GB HBM3", "an accelerator that nobody knows"


def ask(
    model: TransformerModel | MeasuredModel,
    devices: int,
    *,
    gpu: str = H100,
    gib: int = 80,
    batch: int = 16,
    sequence: int = 4096,
    precision: str = "bf16",
    fabric: Fabric | None = None,
    **pins: Any,
) -> Trial:
    shape = DeviceShape(
        kind="gpu", model=gpu, memory_bytes=gib * GIB, per_node=8, nodes=max(1, devices // 8), fabric=fabric
    )
    training = TrainingSpec(global_batch=batch, sequence_length=sequence, precision=Precision(precision))
    request = PlanRequest(
        devices=devices,
        per_pod=min(devices, 8),
        shapes=(shape,),
        model=model,
        training=training,
        parallelism=Parallelism.model_validate(pins),
        what_if=True,
    )
    return trial(request, knowledge())


def everything(tried: Trial) -> list[Scored]:
    """Every variant that fits."""
    search, space = tried.search, tried.search.space
    return [
        search.score(setting)
        for layout in layouts(space)
        for sketch in sketches(space, layout)
        for order in pipelines(space, sketch)
        for setting in savings(space, order)
        if search.memory.fits(setting)
    ]


def rank(scored: Scored, objective: Objective) -> tuple[int, ...]:
    """What the objective asks for, without the tie-breaks."""
    if objective is Objective.MEMORY:
        return (scored.need,)
    return key(scored, objective)[: 1 if scored.step is not None else 6]


CASES = {
    "alone": ask(LLAMA_1B, 1),
    "small on a node": ask(LLAMA_1B, 8),
    "large on a node": ask(LLAMA_8B, 8),
    "hardly fits": ask(LLAMA_8B, 8, gib=40),
    "layers that do not divide": ask(UNEVEN, 8, gib=40),
    "experts": ask(MOE, 8, gib=24),
    "no power of two": ask(UNEVEN, 6, batch=12),
    "pinned": ask(LLAMA_8B, 8, pipeline=4, microBatch=2),
    "pinned schedule": ask(LLAMA_8B, 8, schedule="interleaved"),
    "groups larger than the pipeline": ask(LLAMA_1B, 4, batch=6, schedule="interleaved"),
    "gradients that are whole between micro-batches": ask(
        LLAMA_13B, 8, sequence=512, sharding="full", tensor=1, pipeline=1, context=1
    ),
    "two nodes on a slow network": ask(LLAMA_8B, 16, batch=128, fabric=ETHERNET, **DATA_ONLY),
    "islands smaller than a node": ask(LLAMA_1B, 16, batch=32, gib=40, fabric=PAIRS, tensor=1, pipeline=1),
    "unknown GPU": ask(LLAMA_8B, 8, gpu=UNKNOWN),
    "known by its sizes": ask(SIZES, 8, precision="fp32"),
    "memory": ask(LLAMA_1B, 8, objective="memory"),
    "memory, unknown GPU": ask(LLAMA_1B, 8, gpu=UNKNOWN, objective="memory"),
}


@pytest.mark.parametrize("tried", CASES.values(), ids=CASES)
def test_nothing_that_fits_is_better_than_what_is_found(tried: Trial) -> None:
    found = next(tried.search.ranked())
    objective = tried.search.objective
    best = min(everything(tried), key=lambda one: rank(one, objective))
    assert rank(found, objective) == rank(best, objective), (found, best)
    assert tried.memory.fits(found.setting)


def test_a_single_micro_batch_may_fit_where_smaller_ones_do_not() -> None:
    tried = CASES["gradients that are whole between micro-batches"]
    assert tried.search.feasible()
    assert {one.setting.micro_batches for one in everything(tried)} == {1}


def test_the_best_comes_first_and_others_follow() -> None:
    found = list(CASES["large on a node"].search.ranked())
    keys = [key(one, Objective.TIME) for one in found]
    assert keys[0] == min(keys)
    splits = {(one.setting.layout.tensor, one.setting.layout.pipeline, one.setting.layout.context) for one in found}
    assert len(splits) > 3


def test_on_a_slow_network_states_are_sharded_within_nodes() -> None:
    """Each of many micro-batches would gather the model over 12.5 GB/s, and eight GPUs have room for all of it."""
    found = next(CASES["two nodes on a slow network"].search.ranked())
    setting = found.setting
    assert (setting.sharding, setting.layout.shard_ranks, setting.layout.data) == (Sharding.FULL, 8, 16)
    whole = replace(setting, layout=replace(setting.layout, shard_ranks=0))
    slower = CASES["two nodes on a slow network"].search.score(whole)
    assert found.step is not None and slower.step is not None
    assert slower.step.data_us > 2 * found.step.data_us
    assert slower.need < found.need


def test_on_a_fast_network_they_are_sharded_over_all_ranks() -> None:
    found = next(ask(LLAMA_8B, 16, batch=16, **DATA_ONLY).search.ranked())
    assert found.setting.sharding is not Sharding.NONE
    assert found.setting.layout.shard_ranks == 0


def test_where_nothing_fits_the_closest_is_what_needs_least_of_all() -> None:
    tried = ask(LLAMA_8B, 2, gib=24)
    assert list(tried.search.ranked()) == []
    assert not tried.search.feasible()
    assert tried.search.closest is not None
    space = tried.search.space
    needs = [
        tried.memory.need(setting)
        for layout in layouts(space)
        for sketch in sketches(space, layout)
        for order in pipelines(space, sketch)
        for setting in savings(space, order)
    ]
    assert tried.search.closest.need == min(needs)


@pytest.mark.parametrize(("name", "value"), [("tensor", 4), ("pipeline", 2), ("context", 2), ("data", 2)])
def test_a_pinned_size_is_kept_by_every_plan(name: str, value: int) -> None:
    found = list(ask(LLAMA_1B, 8, **{name: value}).search.ranked())
    assert found
    assert {getattr(one.setting.layout, name) for one in found} == {value}


def test_every_plan_uses_every_rank_and_the_whole_batch() -> None:
    for one in ask(LLAMA_1B, 8).search.ranked():
        setting = one.setting
        assert setting.layout.world == 8
        assert setting.micro_batch * setting.micro_batches * setting.layout.data == 16
        assert setting.layout.pipeline <= setting.micro_batches
