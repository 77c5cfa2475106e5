"""Descriptions of models that cannot be: each member's law, and that planner, reader and calibration ask it."""

from typing import Any

import pytest

from kuangchao_contracts.plan import (
    Adapter,
    DeviceShape,
    Experts,
    LatentAttention,
    MeasuredModel,
    ModelDescriptor,
    PlanRequest,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.descriptor import fault
from kuangchao_operator.layers.strategy.shipped import plan

DENSE = TransformerModel(layers=2, hidden=64, heads=8, ffn=128, vocab=100)
LATENT = LatentAttention(kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8)
SHAPE = DeviceShape(kind="gpu", model="H100", memory_bytes=80 * 2**30, per_node=8, nodes=1)


def moe(**changes: int) -> Experts:
    return Experts(**({"count": 4, "per_token": 1, "ffn": 8} | changes))


CANNOT_BE: list[tuple[dict[str, Any], str, str, str]] = [
    ({"heads": 5}, "heads", "5", "4 or 8"),
    ({"kv_heads": 3}, "kvHeads", "3", "2 or 4"),
    ({"kv_heads": 16}, "kvHeads", "16", "8"),
    ({"head_dim": 1}, "headDim", "1", "2"),
    ({"head_dim": 33}, "headDim", "33", "32 or 34"),
    ({"heads": 64}, "headDim", "1", "2"),
    ({"latent_attention": LATENT.replace(rope_dim=5)}, "latentAttention.ropeDim", "5", "4 or 6"),
    ({"latent_attention": LATENT, "head_dim": 8}, "headDim", "8", "12"),
    ({"frozen_layers": 3}, "frozenLayers", "3", "2"),
    ({"frozen_layers": 2, "adapter": Adapter(rank=4)}, "frozenLayers", "2", "1"),
    ({"adapter": Adapter(rank=65)}, "adapter.rank", "65", "64"),
    ({"learned_positions": 8, "max_sequence": 16}, "maxSequence", "16", "8"),
    ({"experts": moe(per_token=5)}, "experts.perToken", "5", "4"),
    ({"experts": moe(dense_layers=3)}, "experts.denseLayers", "3", "1"),
    ({"experts": moe(dense_layers=2)}, "experts.denseLayers", "2", "1"),
    ({"experts": moe(dense_layers=1, every=2)}, "experts.every", "2", "1"),
]
CAN_BE: list[dict[str, Any]] = [
    {},
    {"kv_heads": 1},
    {"head_dim": 128},
    {"heads": 64, "learned_positions": 8},
    {"latent_attention": LATENT, "head_dim": 12, "heads": 5},
    {"frozen_layers": 2},
    {"frozen_layers": 1, "adapter": Adapter(rank=64)},
    {"learned_positions": 8, "max_sequence": 8},
    {"experts": moe(per_token=4, dense_layers=1, every=1)},
]


@pytest.mark.parametrize(("changes", "field", "value", "nearest"), CANNOT_BE)
def test_what_contradicts_itself_is_refused_with_what_would_be_legal(
    changes: dict[str, Any], field: str, value: str, nearest: str
) -> None:
    why = _refused(DENSE.replace(**changes))
    assert why == ("InvalidSpec", f"model.{field}", value, nearest)


@pytest.mark.parametrize("changes", CAN_BE)
def test_what_is_unusual_is_not_refused(changes: dict[str, Any]) -> None:
    assert fault(DENSE.replace(**changes)) is None


@pytest.mark.parametrize(("trained", "nearest"), [(11, "10"), (0, "1")])
def test_a_measured_model_trains_some_of_its_parameters(trained: int, nearest: str) -> None:
    model = MeasuredModel(parameters=10, trainable_parameters=trained)
    assert _refused(model) == ("InvalidSpec", "model.trainableParameters", str(trained), nearest)
    assert fault(model.replace(trainable_parameters=10)) is None


@pytest.mark.parametrize(("changes", "nearest"), [({"max_sequence": 16}, "16"), ({"learned_positions": 16}, "16")])
def test_a_sequence_is_no_longer_than_the_model_takes(changes: dict[str, int], nearest: str) -> None:
    model = DENSE.replace(**changes)
    assert _refused(model, sequence=17) == ("InvalidSpec", "training.sequenceLength", "17", nearest)
    assert _refused(model, sequence=16) is None


def _refused(model: ModelDescriptor, sequence: int = 8) -> tuple[str, str | None, str | None, str | None] | None:
    training = TrainingSpec(global_batch=8, sequence_length=sequence)
    why = plan(PlanRequest(devices=1, per_pod=1, shapes=(SHAPE,), model=model, training=training)).infeasible
    if why is None:
        return None
    assert f"{why.field}={why.value}" in why.message and why.nearest is not None and why.nearest in why.message
    return (why.reason, why.field, why.value, why.nearest)
