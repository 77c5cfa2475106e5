"""Requests at the edge of what can be said: they get a plan or a refusal, never an exception."""

from typing import Any

from kuangchao_contracts.plan import DeviceShape, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.shipped import plan

GIB = 2**30
A100 = DeviceShape(kind="gpu", model="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB, per_node=8, nodes=64)


def ask(model: TransformerModel, devices: int, batch: int, sequence: int = 4096, **pins: Any) -> PlanRequest:
    fields = {"whatIf": True, "perPod": 1, "devices": devices, "shapes": [A100], "model": model}
    training = {"globalBatch": batch, "sequenceLength": sequence, "precision": "bf16"}
    return PlanRequest.model_validate({**fields, "training": training, "parallelism": pins})


def test_causal_attention_over_a_long_sequence_has_an_mfu_above_the_whole() -> None:
    """The half of the scores that the kernel leaves out counts, and hardly anything else does."""
    model = TransformerModel(layers=8, hidden=1024, heads=16, ffn=4096, vocab=1024, frozen_layers=8)
    made = plan(ask(model, 1, 1, sequence=262_144)).plan
    assert made is not None
    assert made.step is not None
    assert made.step.mfu_ppm > 1_000_000
