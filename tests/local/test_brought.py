"""Models as people bring them train alike under any plan, and go on from checkpoints of any."""

from pathlib import Path

import pytest
import torch

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Sharding
from tests.local.gang import Gang
from tests.local.test_parity import assert_same
from tests.local.training import Job, committed, split, train

DATA = split(batch=12, data=2, accumulation=2)
SHARDED = split(batch=12, data=2, sharding=Sharding.FULL)
ZERO = split(batch=12, pipeline=2, accumulation=3, schedule=Schedule.ZERO_BUBBLE_H1, stage_layers=(2, 3))
CASES = {
    "towers": (DATA, SHARDED),
    "wrapped": (DATA, SHARDED),
    "seldom": (
        SHARDED,
        split(batch=12, data=2, accumulation=3, sharding=Sharding.GRADIENTS),
        split(batch=12, data=4, shard_ranks=2, sharding=Sharding.FULL),
    ),
    "again": (DATA, SHARDED),
    "chained": (
        split(batch=12, pipeline=2, data=2, accumulation=2, sharding=Sharding.FULL),
        split(batch=12, pipeline=2, data=2, accumulation=2, schedule=Schedule.ZERO_BUBBLE_H1),
        split(batch=12, pipeline=2, data=2, accumulation=2, schedule=Schedule.ZERO_BUBBLE_H1, sharding=Sharding.FULL),
    ),
    "branches": (
        split(batch=12, pipeline=2, data=2, accumulation=2, schedule=Schedule.ZERO_BUBBLE_H1, sharding=Sharding.FULL),
    ),
    "frozen": (ZERO, split(batch=12, pipeline=2, accumulation=2, stage_layers=(4, 1))),
    "twice": (split(batch=12, pipeline=2, accumulation=2, stage_layers=(6, 3)), SHARDED),
    "transposed": (SHARDED,),
}
PLANS = [(model, plan) for model, plans in CASES.items() for plan in plans]


def job(model: str, plan: ParallelPlan, folder: Path | None = None, restore: CheckpointRef | None = None) -> Job:
    args, every = {"model": model}, 2 if restore is None else None
    return Job(
        plan, "tests.local.brought:brought", args, double=False, folder=folder, every=every, steps=4, restore=restore
    )


@pytest.mark.parametrize(
    ("model", "plan"),
    PLANS,
    ids=[f"{model}: {plan.summary()}, {plan.schedule}, {plan.sharding}" for model, plan in PLANS],
)
def test_it_trains_like_one_process_and_goes_on(gang: Gang, tmp_path: Path, model: str, plan: ParallelPlan) -> None:
    """From its own checkpoint, in one process from that one, and from that of two data ranks."""
    alone = train(gang, job(model, split(batch=12)))
    straight = train(gang, job(model, plan, tmp_path))
    assert_same(straight, alone, 1e-9)
    ref = committed(job(model, plan, tmp_path), 2)
    for other in (plan, split(batch=12)):
        resumed = train(gang, job(model, other, tmp_path, ref))
        assert resumed.losses == pytest.approx(straight.losses[2:], rel=1e-9)
        for name, weights in straight.weights.items():
            torch.testing.assert_close(resumed.weights[name], weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sharding", [Sharding.FULL, Sharding.OPTIMIZER])
def test_links_that_some_ranks_leave_out_train_as_where_each_has_the_whole_model(
    gang: Gang, sharding: Sharding
) -> None:
    plan = {"batch": 12, "data": 2, "accumulation": 2}
    assert_same(
        train(gang, job("deep", split(**plan, sharding=sharding))), train(gang, job("deep", split(**plan))), 1e-9
    )


def test_buffers_that_count_samples_are_those_of_the_first_rank_as_in_data_parallel(gang: Gang, tmp_path: Path) -> None:
    expected = train(gang, job("counted", split(batch=12, data=2)))
    found = train(gang, job("counted", SHARDED, tmp_path))
    assert_same(found, expected, 1e-9)
    ref = committed(job("counted", SHARDED, tmp_path), 2)
    resumed = train(gang, job("counted", SHARDED, tmp_path, ref))
    assert resumed.losses == found.losses[2:]
