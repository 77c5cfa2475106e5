"""Experts divided over ranks: the result of one process, in fp64, alone and beside the axes that divide the rest."""

from pathlib import Path

import pytest
import torch

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from tests.local.gang import Gang
from tests.local.test_parity import MOE, assert_same
from tests.local.training import Job, Trained, assert_exported, committed, split, train

FULL = {"sharding": Sharding.FULL}
PLANS = {
    "expert": split(data=2, expert=2),
    "expert, accumulated, recomputed": split(data=2, expert=2, accumulation=2, recompute=Recompute.FULL),
    "expert x data": split(data=4, expert=2),
    "all experts apart": split(data=4, expert=4),
    "expert, sharded": split(data=2, expert=2, **FULL),
    "expert x sharded, accumulated": split(data=4, expert=2, accumulation=2, **FULL),
    "expert x gradients sharded": split(data=4, expert=2, accumulation=2, sharding=Sharding.GRADIENTS),
    "expert over data, sharded in islands": split(data=4, expert=2, shard_ranks=2, **FULL),
    "expert over tensor, accumulated, recomputed": split(
        tensor=2, sequence=True, expert=2, accumulation=2, recompute=Recompute.FULL
    ),
    "expert over tensor x sharded, accumulated": split(
        tensor=2, data=2, sequence=True, expert=2, accumulation=2, **FULL
    ),
    "expert over tensor x context, recomputed in part": split(
        tensor=2, context=2, sequence=True, expert=4, recompute=Recompute.SELECTIVE
    ),
    "expert over tensor x pipeline, zb-h1": split(
        tensor=2, pipeline=2, sequence=True, expert=2, accumulation=2, schedule=Schedule.ZERO_BUBBLE_H1
    ),
    "experts whole on tensor ranks x sharded": split(tensor=2, data=2, expert=1, **FULL),
    "experts whole on tensor ranks, sequence": split(tensor=2, sequence=True, expert=1),
    "expert over tensor x sharded in islands": split(tensor=2, data=4, sequence=True, expert=2, shard_ranks=2, **FULL),
    "expert over context": split(context=2, expert=2, **FULL),
    "expert x pipeline, zb-h1, sharded": split(
        pipeline=2, data=2, expert=2, accumulation=4, schedule=Schedule.ZERO_BUBBLE_H1, **FULL
    ),
    "sharded": split(data=2, **FULL),
    "data": split(data=2),
}
OVER_TENSOR = "expert over tensor x sharded, accumulated"
EXPERTS = [name for name in PLANS if "expert" in name]


@pytest.fixture(scope="module")
def alone(gang: Gang) -> Trained:
    return train(gang, Job(split(), MOE))


@pytest.mark.parametrize("plan", [PLANS[name] for name in EXPERTS], ids=EXPERTS)
def test_divided_experts_train_like_whole_ones(gang: Gang, alone: Trained, plan: ParallelPlan) -> None:
    found = train(gang, Job(plan, MOE))
    assert_same(found, alone, 1e-9)
    assert found.metrics["testLoss"] == alone.metrics["testLoss"]


def test_the_same_plan_goes_on_bit_for_bit(gang: Gang, tmp_path: Path) -> None:
    """Dropout too; and a second run of the same plan gives the same bits."""
    plan, args = PLANS[OVER_TENSOR], {**Job(split()).args, "dropout": "0.2"}
    job = Job(plan, MOE, args, double=False, folder=tmp_path, every=3, steps=5)
    straight = train(gang, job)
    resumed = train(gang, Job(plan, MOE, args, double=False, folder=tmp_path, steps=5, restore=committed(job, 3)))
    assert (resumed.losses, resumed.norms) == (straight.losses[3:], straight.norms[3:])
    assert all(torch.equal(resumed.weights[name], value) for name, value in straight.weights.items())
    assert train(gang, Job(plan, MOE, args, double=False, steps=3)).losses == straight.losses[:3]


CHANGES = [("expert x data", "sharded"), ("data", OVER_TENSOR), (OVER_TENSOR, "all experts apart")]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_another_plan_goes_on_from_a_checkpoint(
    gang: Gang, alone: Trained, tmp_path: Path, before: str, after: str
) -> None:
    job = Job(PLANS[before], MOE, folder=tmp_path, every=3, steps=3)
    saved = train(gang, job)
    ref = committed(job, 3)
    assert_exported(job, ref, saved)
    resumed = train(gang, Job(PLANS[after], MOE, folder=tmp_path, restore=ref))
    assert resumed.losses == pytest.approx(alone.losses[3:], rel=1e-9)
    for name, weights in alone.weights.items():
        torch.testing.assert_close(resumed.weights[name], weights, rtol=1e-9, atol=1e-9)
