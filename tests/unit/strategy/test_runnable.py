"""What a job's plan may use: what workers run for any task, and what they run for tasks that have rules, if pinned."""

from typing import Any

import pytest

from kuangchao_contracts.plan import DeviceShape, ParallelPlan, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.runnable import ON_REQUEST
from kuangchao_operator.layers.strategy.shipped import plan

DECODER = TransformerModel(layers=8, hidden=1024, heads=16, kv_heads=8, ffn=4096, vocab=32_000)
GPU = DeviceShape(kind="gpu", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, per_node=8, nodes=1)


def made(**pins: Any) -> ParallelPlan:
    training = {"globalBatch": 16, "sequenceLength": 1024, "precision": "bf16"}
    fields = {"devices": 8, "perPod": 8, "shapes": [GPU], "model": DECODER, "training": training, "parallelism": pins}
    outcome = plan(PlanRequest.model_validate(fields))
    assert outcome.plan is not None, outcome.infeasible
    return outcome.plan


def test_unless_it_is_pinned_a_job_is_data_parallel_and_told_why() -> None:
    found = made()
    assert found.data == 8
    assert {one.axis for one in found.rejected if one.reason == ON_REQUEST} >= {"tensor", "pipeline", "sharding"}


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"tensor": 2}, {"tensor": 2, "sequence": True, "data": 4}),
        ({"tensor": 2, "sequence": False}, {"tensor": 2, "sequence": False}),
        ({"pipeline": 4}, {"pipeline": 4, "data": 2, "virtual_stages": 1}),
        ({"sharding": "full"}, {"sharding": "full", "data": 8}),
        ({"pipeline": 2, "schedule": "gpipe", "sharding": "full"}, {"pipeline": 2, "schedule": "gpipe"}),
    ],
)
def test_what_is_pinned_is_planned_and_nothing_else_is_used(pins: dict[str, Any], expected: dict[str, Any]) -> None:
    found = made(**pins)
    assert {name: getattr(found, name) for name in expected} == expected
    neutral = {"context": 1, "expert": 1, "virtual_stages": 1, "recompute": "none"}
    assert {name: getattr(found, name) for name in neutral} == neutral
    assert found.sharding == pins.get("sharding", "none")
    assert found.schedule == pins.get("schedule", "1f1b")


@pytest.mark.parametrize(
    "pins", [{"pipeline": 2, "schedule": "zb-h1"}, {"sharding": "optimizer"}, {"recompute": "full"}]
)
def test_a_value_that_no_worker_runs_is_refused(pins: dict[str, Any]) -> None:
    training = {"globalBatch": 16, "sequenceLength": 1024, "precision": "bf16"}
    fields = {"devices": 8, "perPod": 8, "shapes": [GPU], "model": DECODER, "training": training, "parallelism": pins}
    why = plan(PlanRequest.model_validate(fields)).infeasible
    assert why is not None
    assert "not built in the worker yet" in why.message
