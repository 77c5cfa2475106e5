"""What a refusal suggests was tried: put in, it plans, or something else is in the way."""

import random
from typing import Any

import pytest

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import DeviceShape, Infeasible, MeasuredModel, PlanRequest, Precision, TransformerModel
from kuangchao_contracts.rules import TaskRule
from kuangchao_contracts.units import to_bytes
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.shipped import plan

GIB = 2**30
RULES = [TaskRule.TENSOR, TaskRule.SEQUENCE, TaskRule.PIPELINE, TaskRule.CONTEXT]
QWEN = TransformerModel(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064)
PINS: dict[str, list[Any]] = {
    "tensor": [1, 2, 4],
    "pipeline": [1, 2, 3, 4, 8, 16],
    "data": [1, 2, 4, 8],
    "context": [1, 2, 4],
    "microBatch": [1, 2, 4, 8],
    "virtualStages": [1, 2, 3],
    "schedule": [schedule.value for schedule in Schedule],
    "sharding": ["none", "full", "gradients"],
    "recompute": ["none", "full"],
}


def asked(draw: random.Random) -> PlanRequest:
    """A job on a small pool as somebody might write it, with some pins that are wrong."""
    nodes, per_pod = draw.choice([1, 2, 6]), draw.choice([1, 2, 8])
    shape = DeviceShape(
        kind="gpu",
        model="NVIDIA H100 80GB HBM3",
        memory_bytes=draw.choice([16, 24, 40, 80]) * GIB,
        per_node=8,
        nodes=nodes,
    )
    pins = {name: draw.choice(PINS[name]) for name in draw.sample(sorted(PINS), draw.choice([0, 1, 1, 2, 3]))}
    return PlanRequest.model_validate(
        {
            "devices": per_pod * draw.randint(1, nodes * 8 // per_pod),
            "perPod": per_pod,
            "shapes": [shape],
            "model": QWEN.replace(layers=draw.choice([3, 17, 28])),
            "training": {"globalBatch": draw.choice([5, 12, 63, 64]), "sequenceLength": 4096, "precision": "bf16"},
            "parallelism": {"mode": draw.choice(["Auto", "Auto", "Manual"]), "taskRules": RULES, **pins},
        }
    )


def put(wish: PlanRequest, why: Infeasible, value: str) -> PlanRequest:
    """The request with a suggested value in place of its own."""
    group, _, name = (why.field or "").partition(".")
    if group == "deviceMemory":
        size = to_bytes(value.replace(" ", "").removesuffix("B"))
        return wish.replace(shapes=(wish.shapes[0].replace(memory_bytes=size),))
    if group == "devices":
        return wish.replace(devices=int(value))
    wire = wish.wire()
    wire[group] |= {name: {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)}
    return PlanRequest.model_validate(wire)


def refused(wish: PlanRequest) -> Infeasible | None:
    return plan(wish).infeasible


def test_no_suggestion_is_what_was_asked_for_or_refused_for_the_same_reason() -> None:
    draw, suggested = random.Random(5), 0
    for _ in range(80):
        wish = asked(draw)
        why = refused(wish)
        if why is None or why.nearest is None:
            continue
        for value in why.nearest.split(" or "):
            suggested += 1
            assert value != why.value, why.message
            again = refused(put(wish, why, value))
            assert again is None or again.field != why.field or " needs " in again.message, why.message
            if why.field == "deviceMemory":
                assert again is None, why.message
            if why.field == "devices.count":
                assert int(value) <= laws.capacity(wish), why.message
    assert suggested > 50


def test_a_pin_that_was_in_the_way_is_named_and_no_batch_that_is_the_same() -> None:
    """Of 48 ranks no stage has an equal share of five samples: that is the batch's fault."""
    training = {"globalBatch": 5, "sequenceLength": 4096, "precision": "bf16"}
    wish = asked(random.Random(0)).wire() | {"devices": 22, "perPod": 2, "training": training}
    wish["model"] = QWEN.replace(layers=5, heads=25, hidden=3200, kv_heads=5).wire()
    wish["shapes"] = [DeviceShape(kind="gpu", model="unknown", memory_bytes=80 * GIB, per_node=8, nodes=3).wire()]
    why = refused(PlanRequest.model_validate(wish | {"parallelism": {"taskRules": RULES}}))
    assert why is not None
    assert why.nearest is not None
    assert why.nearest != why.value
    assert (
        refused(put(PlanRequest.model_validate(wish | {"parallelism": {"taskRules": RULES}}), why, why.nearest)) is None
    )


@pytest.mark.parametrize(("gib", "nearest"), [(180, "fp32"), (250, "bf16"), (60, None)])
def test_a_precision_is_suggested_only_if_it_fits(gib: int, nearest: str | None) -> None:
    """Seven billion parameters: 14 GB + 14 GB + 56 GB in fp16-pure, 16 B each in fp32, 18 B with the casts of bf16."""
    shape = DeviceShape(kind="gpu", model="NVIDIA B200", memory_bytes=gib * GIB, per_node=1, nodes=1)
    wish = PlanRequest.model_validate(
        {
            "devices": 1,
            "perPod": 1,
            "shapes": [shape],
            "model": MeasuredModel(parameters=7_000_000_000 if gib > 100 else 2_500_000_000),
            "training": {"globalBatch": 8, "precision": "fp16-pure", "optimizer": "adam"},
        }
    )
    why = refused(wish)
    assert why is not None
    assert (why.field, why.value, why.nearest) == ("training.precision", "fp16-pure", nearest)
    fits = {
        one.value: refused(wish.replace(training=wish.training.replace(precision=one))) is None
        for one in (Precision.BF16, Precision.FP16, Precision.FP32)
    }
    assert next((name for name, does in fits.items() if does), None) == nearest
    assert nearest is not None or "none fits these devices; with bf16 " in why.message


@pytest.mark.parametrize("precision", ["fp16-pure", "bf16-pure", "fp8"])
def test_what_would_do_for_a_precision_that_is_not_trained_is_that_of_one_that_is(precision: str) -> None:
    """What would fit in the precision itself would be refused for it: so the way out is that of bf16."""
    shape = DeviceShape(kind="gpu", model="X", memory_bytes=120 * GIB, per_node=4, nodes=1)
    training = {"globalBatch": 8, "precision": precision, "optimizer": "adam"}
    model = MeasuredModel(parameters=7_000_000_000)
    body = {"devices": 1, "perPod": 1, "shapes": [shape], "model": model, "training": training}
    wish = PlanRequest.model_validate(body)
    why = refused(wish)
    assert why is not None
    assert (why.field, why.value, why.nearest) == ("training.precision", precision, None)
    way = refused(put(wish, why, "bf16"))
    assert way is not None
    assert way.field == "devices.count"
    assert f"with bf16 {way.message}"[:400] in why.message
    out = put(put(wish, why, "bf16"), way, str(way.nearest))
    assert refused(out) is None
    # and whoever changes what fits first and keeps the precision is told the one that then fits
    again = refused(put(wish, way, str(way.nearest)))
    assert again is not None
    assert (again.field, again.nearest) == ("training.precision", "bf16")


def test_more_devices_than_the_pool_has_are_said_to_be() -> None:
    shape = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=24 * GIB, per_node=8, nodes=1)
    training = {"globalBatch": 64, "sequenceLength": 4096, "precision": "bf16"}
    fields = {"devices": 8, "perPod": 8, "model": QWEN, "training": training, "parallelism": {"taskRules": RULES}}
    small = PlanRequest.model_validate(fields | {"shapes": [shape]})
    why = refused(small)
    assert why is not None
    assert (why.field, why.value, why.nearest) == ("devices.count", "8", None)
    assert "would fit: 16 devices (the pool has 8 for pods of 8)" in why.message
    large = small.replace(shapes=(shape.replace(nodes=4),))
    more = refused(large)
    assert more is not None
    assert "the pool has" not in more.message
    assert refused(put(large, more, more.nearest or "")) is None
