"""Cuts of a model into pipeline stages: there is one for every number of layers that is enough."""

from itertools import pairwise
from typing import Any

import pytest

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import DeviceShape, ParallelPlan, PlanRequest, TransformerModel
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy.search.cuts import balanced, last_spared
from kuangchao_operator.layers.strategy.search.layouts import layouts, sketches
from kuangchao_operator.layers.strategy.search.trial import trial
from kuangchao_operator.layers.strategy.search.variants import pipelines
from kuangchao_operator.layers.strategy.shipped import knowledge, plan

H100 = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, per_node=8, nodes=2)
QWEN = TransformerModel(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064)
RULES = [TaskRule.TENSOR, TaskRule.SEQUENCE, TaskRule.PIPELINE, TaskRule.CONTEXT]


def ask(layers: int, devices: int = 16, **pins: Any) -> PlanRequest:
    return PlanRequest.model_validate(
        {
            "devices": devices,
            "perPod": 8,
            "shapes": [H100],
            "model": QWEN.replace(layers=layers),
            "training": {"globalBatch": 64, "sequenceLength": 4096, "precision": "bf16"},
            "parallelism": {"taskRules": RULES, **pins},
        }
    )


def made(request: PlanRequest) -> ParallelPlan:
    outcome = plan(request)
    assert outcome.plan is not None, outcome.infeasible
    return outcome.plan


@pytest.mark.parametrize(
    ("layers", "pipeline"), [(9, 8), (10, 8), (17, 16), (20, 16), (24, 16), (27, 16), (28, 16), (29, 16), (31, 16)]
)
def test_a_pipeline_of_hardly_fewer_stages_than_layers_has_a_cut(layers: int, pipeline: int) -> None:
    found = made(ask(layers, devices=pipeline, mode="Manual", pipeline=pipeline))
    assert sum(found.stage_layers) == layers
    assert (min(found.stage_layers), max(found.stage_layers)) == (1, 2)
    assert found.stage_layers[-1] == 1


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("pipeline", [2, 4, 8])
def test_every_schedule_has_cuts_of_every_number_of_layers_that_is_enough(schedule: Schedule, pipeline: int) -> None:
    chunks = 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_V) else 1
    for layers in range(pipeline * chunks, 50):
        wish = ask(layers, devices=8, pipeline=pipeline, schedule=schedule, tensor=1, context=1)
        space = trial(wish.replace(what_if=True), knowledge()).search.space
        every = (sketch for layout in layouts(space) for sketch in sketches(space, layout))
        found = {one.layout for sketch in every for one in pipelines(space, sketch)}
        assert found, layers
        for layout in found:
            sizes = layout.stage_layers or (layers // (pipeline * layout.virtual),) * pipeline * layout.virtual
            assert (sum(sizes), len(sizes)) == (layers, pipeline * layout.virtual)
            assert min(sizes) > 0


def test_what_is_left_over_goes_to_inner_stages_first() -> None:
    assert balanced(28, 16) == (1, *[1] * 2, *[2] * 12, 1)
    assert balanced(31, 16) == (*[2] * 15, 1)


def test_a_last_stage_with_a_large_output_layer_has_fewer_layers() -> None:
    """An output layer worth four layers, 16 of them on four stages: at most five and a half on any."""
    assert last_spared(16, 4, 4) == (5, 5, 5, 1)
    wide = QWEN.replace(layers=16, hidden=2048, heads=16, ffn=8192, vocab=128_256)
    found = made(ask(16, devices=8, pipeline=4, tensor=1, context=1).replace(model=wide))
    assert found.stage_layers[-1] < min(found.stage_layers[:-1])


@pytest.mark.parametrize("weight", [1, 2, 5])
def test_no_other_cut_has_a_lighter_heaviest_stage(weight: int) -> None:
    for layers in range(6, 40):
        cut = last_spared(layers, 6, weight)
        heaviest = max(*cut[:-1], cut[-1] + weight)
        assert heaviest <= min(max(-(-(layers - last) // 5), last + weight) for last in range(1, layers - 4))
        assert all(abs(a - b) <= 1 for a, b in pairwise(cut[:-1]))
        assert sum(cut) == layers


@pytest.mark.parametrize("weight", [1, 2, 5, 9, 40])
def test_the_last_stage_is_as_light_as_makes_the_heaviest_lightest(weight: int) -> None:
    """Against every number of layers that the last stage may have."""
    for count, layers in ((2, 28), (3, 28), (4, 30), (7, 61), (8, 8), (16, 126)):
        found = last_spared(layers, count, weight)
        every = range(1, layers // count + 1)
        load = {own: max(-(-(layers - own) // (count - 1)), own + weight) for own in every}
        assert found[-1] == max(own for own in every if load[own] == min(load.values()))
        assert found == (*balanced(layers - found[-1], count - 1), found[-1])


def test_a_cut_is_not_looked_for_layer_by_layer() -> None:
    """A trillion layers would take hours: the schema allows a million, with hundreds of cuts in a search."""
    assert last_spared(2**40, 16, 5) == (*(2**36,) * 10, *(2**36 + 1,) * 4, 2**36, 2**36 - 4)
