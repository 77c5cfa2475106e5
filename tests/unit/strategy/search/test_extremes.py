"""Requests at the edge of what can be said: they get a plan or a refusal, never an exception."""

from typing import Any

import pytest

from kuangchao_contracts.plan import DeviceShape, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.shipped import plan

GIB = 2**30
A100 = DeviceShape(kind="gpu", model="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB, per_node=8, nodes=64)


def ask(model: TransformerModel, devices: int, batch: int, sequence: int = 4096, **pins: Any) -> PlanRequest:
    fields = {"whatIf": True, "perPod": 1, "devices": devices, "shapes": [A100], "model": model}
    training = {"globalBatch": batch, "sequenceLength": sequence, "precision": "bf16"}
    return PlanRequest.model_validate({**fields, "training": training, "parallelism": pins})


def test_a_refusal_quotes_as_much_of_a_long_list_as_there_is_room_for() -> None:
    model = TransformerModel(layers=95, hidden=4096, heads=32, ffn=14336, vocab=32000)
    why = plan(ask(model, 96, 96, pipeline=96, stageLayers=[1] * 96)).infeasible
    assert why is not None
    assert (why.reason, why.field) == ("ContradictoryPlan", "parallelism.stageLayers")
    assert why.value is not None
    assert why.value.startswith("1, 1, ")
    assert "96 layers and the model has 95" in why.message


@pytest.mark.parametrize("managed", [True, False])
def test_a_list_that_is_closed_to_a_job_is_refused_too(managed: bool) -> None:
    model = TransformerModel(layers=200, hidden=4096, heads=32, ffn=14336, vocab=32000)
    wish = ask(model, 200, 200, stageLayers=[1] * 200, recompute="none").replace(what_if=False, managed=managed)
    why = plan(wish).infeasible
    assert why is not None
    assert why.field is not None


@pytest.mark.parametrize("devices", [8_193, 16_384, 524_289, 1_048_576])
def test_more_devices_than_a_request_can_ask_for_are_not_tried(devices: int) -> None:
    """Every rank has all of a model that no device has room for."""
    model = TransformerModel(layers=95, hidden=65_536, heads=32, ffn=262_144, vocab=32_000)
    wish = ask(model, devices, devices, tensor=1, pipeline=1, context=1, sharding="none")
    why = plan(wish.replace(shapes=(A100.replace(per_node=1, nodes=1_048_576),))).infeasible
    assert why is not None
    assert (why.reason, why.field) == ("Infeasible", "deviceMemory")


def test_nor_where_no_split_keeps_the_laws() -> None:
    model = TransformerModel(layers=5, hidden=4096, heads=32, ffn=14336, vocab=32_000)
    wish = ask(model, 1_048_576, 3)
    why = plan(wish.replace(shapes=(A100.replace(per_node=1, nodes=1_048_576),))).infeasible
    assert why is not None
    assert why.reason == "ContradictoryPlan"


def test_causal_attention_over_a_long_sequence_has_an_mfu_above_the_whole() -> None:
    """The half of the scores that the kernel leaves out counts, and hardly anything else does."""
    model = TransformerModel(layers=8, hidden=1024, heads=16, ffn=4096, vocab=1024, frozen_layers=8)
    made = plan(ask(model, 1, 1, sequence=262_144)).plan
    assert made is not None
    assert made.step is not None
    assert made.step.mfu_ppm > 1_000_000
