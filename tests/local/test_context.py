"""Sequences divided over context ranks: the result of one process, in fp64, alone and beside every other axis."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from kuangchao_worker.parallel import attention
from kuangchao_worker.parallel.groups import Groups, divided_over
from kuangchao_worker.parallel.tokens import cut
from kuangchao_worker.tasks import Task, load_task
from tests.local.gang import Gang, RankFailedError, Seat, built
from tests.local.test_parity import assert_same
from tests.local.training import Job, Trained, committed, split, train

FULL = {"sharding": Sharding.FULL}
PLANS = {
    "context": split(context=2),
    "context of three, accumulated": split(context=3, accumulation=2),
    "context x data": split(context=2, data=2),
    "context, sharded, recomputed in part": split(context=2, recompute=Recompute.SELECTIVE, **FULL),
    "context x sharded gradients, accumulated": split(context=2, data=2, accumulation=2, sharding=Sharding.GRADIENTS),
    "context x sharded in islands": split(context=2, data=2, shard_ranks=2, **FULL),
    "context x tensor": split(context=2, tensor=2),
    "context x tensor, sequence, sharded": split(context=2, tensor=2, sequence=True, **FULL),
    "context x pipeline, zb-h1": split(context=2, pipeline=2, accumulation=4, schedule=Schedule.ZERO_BUBBLE_H1),
    "context x pipeline x tensor": split(context=2, pipeline=2, tensor=2, accumulation=2, sequence=True, **FULL),
}
ARGS = {**Job(split()).args, "sequence": "24"}


@pytest.fixture(scope="module")
def alone(gang: Gang) -> Trained:
    return train(gang, Job(split(), args=ARGS))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_sequences_in_parts_train_like_whole_ones(gang: Gang, alone: Trained, plan: ParallelPlan) -> None:
    found = train(gang, Job(plan, args=ARGS))
    assert_same(found, alone, 1e-9)
    assert found.metrics["testLoss"] == alone.metrics["testLoss"]


@pytest.mark.parametrize(
    ("before", "after"), [("context x sharded in islands", "context x tensor"), ("context x tensor", "context")]
)
def test_another_plan_goes_on_from_a_checkpoint(
    gang: Gang, alone: Trained, tmp_path: Path, before: str, after: str
) -> None:
    job = Job(PLANS[before], args=ARGS, folder=tmp_path, every=3, steps=3)
    train(gang, job)
    resumed = train(gang, Job(PLANS[after], args=ARGS, folder=tmp_path, restore=committed(job, 3)))
    assert resumed.losses == pytest.approx(alone.losses[3:], rel=1e-9)


def test_the_same_plan_goes_on_bit_for_bit(gang: Gang, tmp_path: Path) -> None:
    """Dropout too: each context rank draws for its own tokens."""
    plan, args = PLANS["context x tensor"], {**ARGS, "dropout": "0.2"}
    job = Job(plan, args=args, double=False, folder=tmp_path, every=3, steps=5)
    straight = train(gang, job)
    resumed = train(gang, Job(plan, args=args, double=False, folder=tmp_path, steps=5, restore=committed(job, 3)))
    assert (resumed.losses, resumed.norms) == (straight.losses[3:], straight.norms[3:])
    assert all(torch.equal(resumed.weights[name], value) for name, value in straight.weights.items())


def test_attention_without_a_mask_sees_all_keys(gang: Gang) -> None:
    assert all(gang.run(2, built, split(context=2), _unmasked))


def _unmasked(seat: Seat, mesh: object, plan: ParallelPlan) -> bool:
    """Outputs and gradients of this rank's tokens, against those of whole sequences."""
    whole = [torch.rand(2, heads, 8, 4, dtype=torch.float64) for heads in (4, 2, 2)]
    for tensor in whole:
        dist.broadcast(tensor, 0)
    own = [cut((t,), {"0": 2}, seat.rank, 2)[0].requires_grad_() for t in whole]
    with divided_over(Groups(context=dist.group.WORLD)):
        attention(*own, causal=False).square().sum().backward()
    for tensor in whole:
        tensor.requires_grad_()
    attention(*whole, causal=False).square().sum().backward()
    expected = [cut((t.grad,), {"0": 2}, seat.rank, 2)[0] for t in whole]
    return all(torch.allclose(a.grad, b, rtol=1e-12) for a, b in zip(own, expected, strict=True) if a.grad is not None)


class Alone(nn.Module):
    """Uses torch's attention, which knows of no other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        return nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)


def plain(args: dict[str, str]) -> Task:
    """A task whose rules promise what its model does not keep."""
    made = load_task("kuangchao_worker.tasks.text:transformer", args)
    return replace(made, model=Alone, rules=made.rules.replace(chain=(), tensor={}))


def test_a_model_whose_tokens_never_meet_those_of_other_ranks_is_refused(gang: Gang) -> None:
    with pytest.raises(RankFailedError, match=r"task\.rules\.tokens.*calls no kuangchao_worker\.parallel"):
        train(gang, Job(split(context=2), task=f"{__name__}:plain", args=ARGS))
