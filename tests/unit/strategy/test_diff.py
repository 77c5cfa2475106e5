"""Two plans compared in words: every member counts, and the lines say what a person wants to know."""

from typing import Any

import pytest
from tests.unit.contracts.test_plan import LATER, STAGE, plan

from kuangchao_contracts.parallel import StepEstimate
from kuangchao_contracts.plan import Alternative, Axis, AxisGroups, ParallelPlan, Recompute, RejectedAxis, Sharding
from kuangchao_operator.layers.strategy.diff import diff

GIB = 2**30
OTHERS: dict[str, Any] = {
    "world_size": 16,
    "per_pod": 4,
    "pods": 2,
    "tensor": 2,
    "pipeline": 2,
    "data": 4,
    "context": 2,
    "expert": 2,
    "sequence": True,
    "virtual_stages": 2,
    "micro_batch": 2,
    "accumulation_steps": 2,
    "global_batch": 16,
    "recompute": Recompute.FULL,
    "sharding": Sharding.FULL,
    "managed": False,
    "groups": (AxisGroups(axis=Axis.DATA, size=8, stride=2),),
    "memory_checked": False,
    "device_memory_bytes": 200,
    "step_microseconds": 5,
    "bubble_ppm": 7,
    "alternatives": (Alternative(summary="a", reason="b"),),
    "rejected": (RejectedAxis(axis="a", reason="b"),),
    "request_digest": "b" * 64,
    **LATER,
}


def test_equal_plans_differ_in_nothing() -> None:
    assert diff(plan(**LATER), plan(**LATER)) == ()


@pytest.mark.parametrize("member", ParallelPlan.model_fields)
def test_a_change_of_any_member_is_said(member: str) -> None:
    assert diff(plan(), plan(**{member: OTHERS[member]}))


def test_sizes_memory_and_time_in_words() -> None:
    before = plan(
        tensor=4,
        memory=(STAGE.replace(activations_bytes=40 * GIB, reserved_bytes=61 * GIB), STAGE.replace(stage=1)),
        step_microseconds=1_200_000,
        step=StepEstimate(step_us=1_200_000, compute_us=1_000_000, tensor_us=200_000, mfu_ppm=412_000),
        bubble_ppm=100_000,
    )
    after = before.replace(
        tensor=8,
        memory=(STAGE, STAGE.replace(stage=1, activations_bytes=20 * GIB, reserved_bytes=48 * GIB)),
        step_microseconds=900_000,
        step=StepEstimate(step_us=900_000, compute_us=500_000, tensor_us=400_000, mfu_ppm=400_000),
        bubble_ppm=50_000,
    )
    assert diff(before, after) == (
        "tensor 4 -> 8: a layer is divided over more ranks",
        "memory of the fullest stage (stage 0 -> 1) 61.0 GiB -> 48.0 GiB: activations 40.0 GiB -> 20.0 GiB",
        "step 1.20 s -> 900 ms (-25.0 %)",
        "its parts: compute 1.00 s -> 500 ms, tensor 200 ms -> 400 ms",
        "MFU 41.2 % -> 40.0 %",
        "bubble 10.0 % -> 5.0 %",
    )


def test_what_was_not_estimated_is_not_compared() -> None:
    assert diff(plan(memory=()), plan()) == ("memory: is estimated now",)
    assert diff(plan(step_microseconds=5), plan()) == ("step time: was estimated, and is not any more",)
    assert diff(plan(), plan(memory=(STAGE, STAGE.replace(stage=1)))) == (
        "memory of other stages differs, that of the fullest one does not",
    )


def test_a_step_that_hardly_changes_is_not_said_to_change_by_more() -> None:
    assert diff(plan(step_microseconds=1000), plan(step_microseconds=999)) == ("step 1.00 ms -> 999 us (-0.1 %)",)
