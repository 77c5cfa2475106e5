"""Whatever the plan, the result is the same: losses, gradient norms and weights against one process, in fp64."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Sharding
from tests.local.gang import Gang
from tests.local.training import Job, Trained, assert_exported, committed, split, train

FULL = {"sharding": Sharding.FULL}
MOE = "kuangchao_worker.tasks.text:moe"
MLP = "kuangchao_worker.tasks.mlp:mlp"
PLANS = {
    "data": split(data=2),
    "data, accumulated": split(data=2, accumulation=2),
    "sharded": split(data=2, **FULL),
    "sharded over three": split(batch=12, data=3, **FULL),
    "sharded, accumulated": split(data=2, accumulation=2, **FULL),
    "sharded in islands": split(data=4, shard_ranks=2, **FULL),
    "optimizer sharded, accumulated": split(data=2, accumulation=2, sharding=Sharding.OPTIMIZER),
    "gradients sharded, accumulated": split(data=2, accumulation=2, sharding=Sharding.GRADIENTS),
    "gradients sharded in islands, accumulated": split(
        data=4, shard_ranks=2, accumulation=2, sharding=Sharding.GRADIENTS
    ),
    "tensor": split(tensor=2),
    "tensor, sequence": split(tensor=2, sequence=True),
    "tensor, accumulated": split(tensor=2, accumulation=2),
    "tensor x data": split(tensor=2, data=2),
    "tensor x sharded": split(tensor=2, data=2, **FULL),
    "tensor, sequence x data": split(tensor=2, data=2, sequence=True),
    "tensor, sequence x sharded, accumulated": split(tensor=2, data=2, sequence=True, accumulation=2, **FULL),
    "tensor, sequence x optimizer sharded, accumulated": split(
        tensor=2, data=2, sequence=True, accumulation=2, sharding=Sharding.OPTIMIZER
    ),
    "tensor x sharded in islands": split(tensor=2, data=4, shard_ranks=2, **FULL),
    "pipeline": split(pipeline=2, accumulation=4),
    "pipeline, ends without layers, all forward first": split(
        pipeline=4, accumulation=4, schedule=Schedule.GPIPE, stage_layers=(0, 1, 1, 0)
    ),
    "pipeline x data": split(pipeline=2, data=2, accumulation=2),
    "pipeline x sharded": split(pipeline=2, data=2, accumulation=4, **FULL),
    "pipeline x gradients sharded": split(pipeline=2, data=2, accumulation=4, sharding=Sharding.GRADIENTS),
    "pipeline x tensor": split(pipeline=2, tensor=2, accumulation=2),
    "pipeline x tensor, sequence": split(pipeline=2, tensor=2, accumulation=2, sequence=True),
    "pipeline x tensor x data": split(pipeline=2, tensor=2, data=2, accumulation=2),
    "pipeline x tensor, sequence x sharded": split(pipeline=2, tensor=2, data=2, accumulation=2, sequence=True, **FULL),
}


@pytest.fixture(scope="module")
def alone(gang: Gang) -> dict[int, Trained]:
    """One process, by global batch."""
    return {batch: train(gang, Job(split(batch=batch))) for batch in (12, 16)}


def assert_same(found: Trained, expected: Trained, relative: float) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=relative)
    # six digits are what a step reports of its norm
    assert found.norms == pytest.approx(expected.norms, rel=max(relative, 2e-6))
    assert found.weights.keys() == expected.weights.keys()
    for name, weights in expected.weights.items():
        torch.testing.assert_close(found.weights[name], weights, rtol=relative, atol=relative)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_any_plan_trains_like_one_process(gang: Gang, alone: dict[int, Trained], plan: ParallelPlan) -> None:
    found = train(gang, Job(plan))
    assert len(set(found.losses)) == 6 and found.losses[-1] < found.losses[0]
    assert_same(found, alone[plan.global_batch], 1e-9)


@pytest.mark.parametrize("task", [MOE, MLP])
def test_models_without_rules_train_sharded(gang: Gang, task: str) -> None:
    args = {"dropout": "0", **({} if task == MLP else Job(split()).args)}
    found, expected = (train(gang, Job(plan, task, args)) for plan in (split(data=2, **FULL), split()))
    assert_same(found, expected, 1e-9)


DIGITS = "kuangchao_worker.tasks.digits:digits"
LAYERS = {**Job(split()).args, "layers": "3"}


@pytest.mark.parametrize(
    ("task", "args", "sizes"),
    [
        (DIGITS, {"dropout": "0"}, {}),
        (MOE, Job(split()).args, {"data": 2, **FULL}),
        ("kuangchao_worker.tasks.text:transformer", LAYERS, {"stage_layers": (2, 1)}),
    ],
    ids=["a sequential without rules", "experts", "stages of unequal layers"],
)
def test_models_are_cut_into_stages(gang: Gang, task: str, args: dict[str, str], sizes: dict[str, Any]) -> None:
    cut = split(pipeline=2, accumulation=2, **sizes)
    found, expected = (train(gang, Job(plan, task, args)) for plan in (cut, split()))
    assert_same(found, expected, 1e-9)
    measured = expected.metrics.keys() - {"loss", "gradientNorm"}
    assert len(measured) == 1
    assert all(found.metrics[name] == expected.metrics[name] for name in measured), "rank 0 measures the whole model"


@pytest.mark.parametrize("kind", [Sharding.FULL, Sharding.OPTIMIZER])
def test_sharded_data_gives_the_bits_of_data_parallel(gang: Gang, kind: Sharding) -> None:
    """Of two operands the sum is the same in any order; dropout and all, in fp32."""
    args = {**Job(split()).args, "dropout": "0.2"}
    found, expected = (
        train(gang, Job(split(data=2, accumulation=2, **more), args=args, double=False))
        for more in ({"sharding": kind}, {})
    )
    assert found.losses == expected.losses
    assert all(torch.equal(found.weights[name], weights) for name, weights in expected.weights.items())


def test_fp32_stays_near_one_process(gang: Gang) -> None:
    plan = split(tensor=2, data=2, sequence=True, **FULL)
    found, expected = (train(gang, Job(p, double=False)) for p in (plan, split()))
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)


RESUMED = ["sharded over three", "tensor, sequence x sharded, accumulated", "pipeline x tensor x data"]


@pytest.mark.parametrize("name", RESUMED)
def test_the_same_plan_goes_on_bit_for_bit(gang: Gang, tmp_path: Path, name: str) -> None:
    """Dropout too: each rank gets back its own random numbers."""
    args = {**Job(split()).args, "dropout": "0.2"}
    job = Job(PLANS[name], args=args, double=False, folder=tmp_path, every=3)
    straight = train(gang, job)
    ref = committed(job, 3)
    resumed = train(gang, Job(PLANS[name], args=args, double=False, folder=tmp_path, restore=ref))
    assert resumed.losses == straight.losses[3:]
    assert resumed.norms == straight.norms[3:]
    assert all(torch.equal(resumed.weights[key], value) for key, value in straight.weights.items())
    again = train(gang, Job(PLANS[name], args=args, double=False, steps=3))
    assert again.losses == straight.losses[:3], "and the same plan twice gives the same bits"


CHANGES = [
    ("data", "sharded"), ("sharded", "data"), ("optimizer sharded, accumulated", "data"),
    ("tensor", "gradients sharded, accumulated"), ("sharded", "sharded in islands"), ("sharded in islands", "tensor"),
    ("tensor x sharded", "sharded"), ("sharded", "tensor, sequence x sharded, accumulated"), ("tensor", "data"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_another_plan_goes_on_from_a_checkpoint(
    gang: Gang, alone: dict[int, Trained], tmp_path: Path, before: str, after: str
) -> None:
    job = Job(PLANS[before], folder=tmp_path, every=3, steps=3)
    saved = train(gang, job)
    ref = committed(job, 3)
    assert_exported(job, ref, saved)
    resumed = train(gang, Job(PLANS[after], folder=tmp_path, restore=ref))
    assert resumed.losses == pytest.approx(alone[16].losses[3:], rel=1e-9)
    for name, weights in alone[16].weights.items():
        torch.testing.assert_close(resumed.weights[name], weights, rtol=1e-9, atol=1e-9)
