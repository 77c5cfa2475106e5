"""Models whose tasks have no rules are split by what they show, and train as in one process."""

import pytest

from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from tests.local.gang import Gang
from tests.local.test_parity import assert_same
from tests.local.training import Job, split, train

Named = tuple[str, dict[str, str]]
MLP: Named = ("kuangchao_worker.tasks.mlp:mlp", {"samples": "96", "layers": "4", "dropout": "0"})
DECODER: Named = ("tests.local.unruled:decoder", {})
PLANS = [
    (DECODER, split(tensor=2)),
    (DECODER, split(pipeline=2, accumulation=2)),
    (DECODER, split(tensor=2, pipeline=2, accumulation=2)),
    (DECODER, split(tensor=2, data=2, sharding=Sharding.FULL, recompute=Recompute.FULL)),
    (MLP, split(tensor=2)),
    (MLP, split(tensor=4)),
    (MLP, split(tensor=2, pipeline=2, accumulation=2, stage_layers=(2, 3))),
]
IDS = [f"{task[0].rpartition(':')[2]}: {plan.summary()}" for task, plan in PLANS]


@pytest.mark.parametrize(("task", "plan"), PLANS, ids=IDS)
def test_it_trains_like_one_process(gang: Gang, task: Named, plan: ParallelPlan) -> None:
    name, args = task
    alone = train(gang, Job(split(), name, args))
    assert_same(train(gang, Job(plan, name, args)), alone, 1e-10)
