"""Pipelines with several stages on a rank, or with the gradients of weights apart: the result of one process, fp64."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from tests.local.gang import Gang
from tests.local.test_parity import assert_same
from tests.local.training import SMALL, Job, Trained, assert_exported, committed, split, train

ARGS = {**SMALL, "layers": "4"}
FULL = {"sharding": Sharding.FULL}
ROUND = {"pipeline": 2, "virtual_stages": 2, "schedule": Schedule.INTERLEAVED}
H1 = {"pipeline": 2, "schedule": Schedule.ZERO_BUBBLE_H1}
VEE = {"pipeline": 2, "virtual_stages": 2, "schedule": Schedule.ZERO_BUBBLE_V}
PLANS = {
    "interleaved": split(accumulation=4, **ROUND),
    "interleaved, one round of three": split(batch=12, accumulation=3, **ROUND),
    "interleaved, unequal": split(accumulation=2, **ROUND, stage_layers=(0, 2, 1, 1)),
    "interleaved, recomputed x data": split(accumulation=4, data=2, **ROUND, recompute=Recompute.FULL),
    "interleaved x tensor x sharded": split(accumulation=2, tensor=2, data=2, sequence=True, **ROUND, **FULL),
    "zb-h1 x data": split(accumulation=4, data=2, **H1),
    "zb-h1 x tensor x gradients sharded": split(accumulation=2, tensor=2, data=2, **H1, sharding=Sharding.GRADIENTS),
    "zb-v": split(accumulation=4, **VEE),
    "zb-v, unequal": split(accumulation=4, **VEE, stage_layers=(1, 2, 1, 0)),
    "zb-v x tensor": split(accumulation=2, tensor=2, **VEE),
    "zb-v x context": split(accumulation=2, context=2, **VEE),
    "zb-v x sharded": split(accumulation=4, data=2, **VEE, **FULL),
    "zb-v x tensor, sequence x sharded": split(accumulation=2, tensor=2, data=2, sequence=True, **VEE, **FULL),
}


@pytest.fixture(scope="module")
def alone(gang: Gang) -> dict[int, Trained]:
    """One process, by global batch."""
    return {batch: train(gang, Job(split(batch=batch), args=ARGS)) for batch in (12, 16)}


@pytest.fixture(scope="module")
def plain(gang: Gang) -> Trained:
    """The same number of stages and micro-batches under 1F1B, in fp32."""
    return train(gang, Job(split(pipeline=2, accumulation=4), args=ARGS, double=False))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_any_schedule_trains_like_one_process(gang: Gang, alone: dict[int, Trained], plan: ParallelPlan) -> None:
    assert_same(train(gang, Job(plan, args=ARGS)), alone[plan.global_batch], 1e-9)


@pytest.mark.parametrize("more", [ROUND, H1, VEE], ids=["interleaved", "zb-h1", "zb-v"])
def test_the_order_of_passes_changes_no_bit(gang: Gang, plain: Trained, more: dict[str, Any]) -> None:
    found = train(gang, Job(split(accumulation=4, **more), args=ARGS, double=False))
    assert (found.losses, found.norms) == (plain.losses, plain.norms)
    assert all(torch.equal(found.weights[name], weights) for name, weights in plain.weights.items())


MOE = "kuangchao_worker.tasks.text:moe"
EXPERTS = {**VEE, **FULL, "data": 2, "expert": 2}
DIGITS = "kuangchao_worker.tasks.digits:digits"


@pytest.mark.parametrize(
    ("task", "args", "more"),
    [(MOE, ARGS, EXPERTS), (DIGITS, {"dropout": "0"}, ROUND)],
    ids=["experts, zb-v", "sequential"],
)
def test_other_models_are_cut_as_finely(gang: Gang, task: str, args: dict[str, str], more: dict[str, Any]) -> None:
    plan = split(accumulation=2, **more)
    if task == DIGITS:
        plan = plan.model_copy(update={"stage_layers": (2, 1, 1, 2)})
    found, expected = (train(gang, Job(plan, task, args)) for plan in (plan, split()))
    assert_same(found, expected, 1e-9)
    (measured,) = expected.metrics.keys() - {"loss", "gradientNorm"}
    assert found.metrics[measured] == expected.metrics[measured], "rank 0 measures the whole model"


def test_the_same_plan_goes_on_bit_for_bit(gang: Gang, tmp_path: Path) -> None:
    """Dropout too, with several stages drawing from one rank's numbers."""
    args, plan = {**ARGS, "dropout": "0.2"}, PLANS["zb-v x sharded"]
    job = Job(plan, args=args, double=False, folder=tmp_path, every=3)
    straight = train(gang, job)
    resumed = train(gang, Job(plan, args=args, double=False, folder=tmp_path, restore=committed(job, 3)))
    assert resumed.losses == straight.losses[3:]
    assert resumed.norms == straight.norms[3:]
    assert all(torch.equal(resumed.weights[key], value) for key, value in straight.weights.items())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLANS["interleaved x tensor x sharded"], split(data=2)),
        (split(data=2), PLANS["zb-v"]),
        (PLANS["zb-v"], PLANS["interleaved"]),
    ],
    ids=["interleaved to data", "data to zb-v", "zb-v to interleaved"],
)
def test_another_plan_goes_on_from_a_checkpoint(
    gang: Gang, alone: dict[int, Trained], tmp_path: Path, before: ParallelPlan, after: ParallelPlan
) -> None:
    job = Job(before, args=ARGS, folder=tmp_path, every=3, steps=3)
    saved = train(gang, job)
    ref = committed(job, 3)
    assert_exported(job, ref, saved)
    resumed = train(gang, Job(after, args=ARGS, folder=tmp_path, restore=ref))
    assert resumed.losses == pytest.approx(alone[16].losses[3:], rel=1e-9)
    for name, weights in alone[16].weights.items():
        torch.testing.assert_close(resumed.weights[name], weights, rtol=1e-9, atol=1e-9)
