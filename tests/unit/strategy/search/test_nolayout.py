"""Requests of which no single value is wrong and that have no lawful layout: what stands in the way, what is named."""

import re
from typing import Any

import pytest

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import (
    DeviceShape,
    Experts,
    Infeasible,
    MeasuredModel,
    ParallelPlan,
    PlanRequest,
    TransformerModel,
)
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.search.possible import possible
from kuangchao_operator.layers.strategy.shipped import knowledge, plan

GIB = 2**30
RULES = [TaskRule.TENSOR, TaskRule.SEQUENCE, TaskRule.PIPELINE, TaskRule.CONTEXT]
QWEN = TransformerModel(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064)
H100 = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, per_node=8, nodes=4)


def ask(
    devices: int = 16, per_pod: int = 8, batch: int = 64, length: int = 4096, shape: DeviceShape = H100, **rest: Any
) -> PlanRequest:
    """A job whose task has all rules."""
    model, pins = rest.pop("model", QWEN), {name: value for name, value in rest.items() if name != "whatIf"}
    return PlanRequest.model_validate(
        {
            "devices": devices,
            "perPod": per_pod,
            "shapes": [shape],
            "model": model,
            "training": {"globalBatch": batch, "sequenceLength": length, "precision": "bf16"},
            "parallelism": {"taskRules": RULES, **pins},
            "whatIf": rest.get("whatIf", False),
        }
    )


def planned(request: PlanRequest) -> ParallelPlan:
    outcome = plan(request)
    assert outcome.plan is not None, outcome.infeasible
    return outcome.plan


def refused(request: PlanRequest) -> Infeasible:
    why = plan(request).infeasible
    assert why is not None
    return why


@pytest.mark.parametrize(
    ("devices", "layers", "cut"),
    [
        (16, 14, [0, *[1] * 14, 0]),
        (8, 6, [0, *[1] * 6, 0]),
        (8, 7, [0, *[1] * 7]),
        (8, 2, [0, 1, 1, 0]),
        (8, 3, [0, 1, 1, 1]),
    ],
)
def test_ends_may_stand_alone_where_the_list_is_pinned(devices: int, layers: int, cut: list[int]) -> None:
    made = planned(ask(devices, model=QWEN.replace(layers=layers), pipeline=len(cut), stageLayers=cut))
    assert (made.pipeline, made.stage_layers) == (len(cut), tuple(cut))


def test_chunks_at_the_ends_may_stand_alone_too() -> None:
    pins: dict[str, Any] = {
        "pipeline": 4,
        "virtualStages": 2,
        "stageLayers": [0, *[1] * 6, 0],
        "schedule": "interleaved",
    }
    made = planned(ask(8, model=QWEN.replace(layers=6), **pins))
    assert (made.schedule, made.virtual_stages) == (Schedule.INTERLEAVED, 2)


@pytest.mark.parametrize(
    ("request_", "field", "nearest"),
    [
        (ask(20, 4, 32, microBatch=12), "parallelism.microBatch", "4"),
        (ask(4, 4, 4, data=3, schedule="gpipe", sequence=True), "parallelism.data", "1"),
        (ask(40, 8, 1, 2048), "devices.count", "8"),
    ],
    ids=["microBatch", "data", "beyond the pool"],
)
def test_what_a_law_names_has_a_layout_and_what_is_nearer_has_none(
    request_: PlanRequest, field: str, nearest: str
) -> None:
    """8 divides the batch of 32 and not what 20 ranks can share: by its own law it would be nearer."""
    why = laws.violated(request_, lambda wish: possible(wish, knowledge()))
    assert why is not None
    assert (why.field, why.nearest) == (field, nearest), why.message
    lawful = laws.violated(request_)
    assert lawful is not None
    assert lawful.nearest != nearest


def test_a_measured_model_is_not_told_of_layers() -> None:
    why = refused(ask(16, 8, 7, model=MeasuredModel(parameters=10**8)))
    assert "no split of the model" in why.message
    assert not re.search(r"layers|heads", why.message)
    assert "dp16 (globalBatch=7 cannot be split evenly over 16 data-parallel ranks" in why.message


def test_where_no_single_change_would_do_the_pin_that_is_wrong_is_named() -> None:
    """Nothing of a measured model is divided, and no number of pods of six shares a batch of four."""
    why = refused(ask(6, 6, 4, shape=H100.replace(nodes=1), model=MeasuredModel(parameters=10**8), sequence=True))
    assert (why.field, why.value, why.nearest) == ("parallelism.sequence", "true", None)
    assert why.message.startswith("parallelism.sequence=true: no split of the model over 6 devices")
    assert "with none is there a split" in why.message


def test_the_law_that_closes_it_is_named_with_the_field_to_change() -> None:
    """Two divide the batch of four, and eight ranks; an ffn of odd width stands in the way."""
    request = ask(8, 8, 4, length=512, model=QWEN.replace(ffn=13, layers=1), microBatch=1, data=4)
    why = refused(request)
    assert "tp2dp4 (tensor=2 does not divide the ffn width 13)" in why.message
    assert why.message.startswith(f"{why.field}={why.value}: no split of the model")
    assert f"nearest legal {why.field}" in why.message
    assert why.nearest is not None


def test_a_split_that_does_not_fit_is_said_not_to() -> None:
    small = H100.replace(memory_bytes=8 * GIB, nodes=1)
    why = refused(ask(8, 8, 4, length=512, shape=small, model=QWEN.replace(ffn=13, layers=80)))
    assert "no split of the model" in why.message
    assert "with which there is a split, though none that fits the memory" in why.message


def test_no_more_devices_are_named_than_the_pool_has() -> None:
    a10 = DeviceShape(kind="gpu", model="NVIDIA A10", memory_bytes=8 * GIB, per_node=8, nodes=2)
    why = refused(ask(shape=a10))
    assert (why.field, why.value, why.nearest) == ("devices.count", "16", None)
    assert "96 devices (the pool has 16 for pods of 8)" in why.message


def test_a_tensor_size_that_only_a_pin_opens_is_named_where_it_fits() -> None:
    """Four nodes of one device: without a pin no tensor group leaves its node."""
    a10 = DeviceShape(kind="gpu", model="NVIDIA A10", memory_bytes=24 * GIB, per_node=1, nodes=4)
    model = TransformerModel(layers=2, hidden=8192, heads=64, kv_heads=8, ffn=8192, vocab=1024)
    request = ask(4, 1, 4, 65536, a10, model=model, taskRules=RULES[:2])
    why = refused(request)
    assert (why.field, why.value) == ("parallelism.tensor", None), why.message
    assert "whose groups leave the island of fast links" in why.message
    assert why.nearest is not None
    pinned = request.parallelism.replace(tensor=int(why.nearest))
    assert planned(request.replace(parallelism=pinned)).tensor == int(why.nearest)


def test_where_two_things_are_wrong_the_nearest_is_what_no_law_on_the_field_refuses() -> None:
    """Seven context ranks divide no 16 devices, whatever the length is."""
    why = refused(ask(length=2049, model=QWEN.replace(max_sequence=2048), context=7))
    assert (why.field, why.nearest) == ("training.sequenceLength", "2048")


def test_what_is_needed_agrees_with_the_lines_that_add_up_to_it() -> None:
    why = refused(ask(shape=H100.replace(memory_bytes=16 * GIB)))
    need, total = (re.search(words, why.message) for words in (r"needs ([\d.]+) GiB", r"outside it ([\d.]+) GiB"))
    assert need is not None
    assert total is not None, why.message
    assert len(need[1].split(".")[1]) == 2
    assert abs(float(need[1]) - float(total[1])) <= 0.0501


def test_an_ask_is_of_layouts_alone() -> None:
    """Nothing of 8 GiB holds a layer of this model; it is laid out all the same."""
    small = H100.replace(memory_bytes=1)
    experts = Experts(count=5, per_token=1, ffn=64)
    assert possible(ask(shape=small), knowledge())
    assert not possible(ask(8, 8, 3, 512, model=QWEN.replace(ffn=13, experts=experts), pipeline=1), knowledge())
