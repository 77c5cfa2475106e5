"""Models whose tasks have no rules are split by what they show, and train as in one process."""

from typing import Any

import pytest

from kuangchao_contracts.plan import DeviceShape, MeasuredModel, ParallelPlan, PlanRequest, Recompute, Sharding
from kuangchao_operator.layers.strategy import shipped
from tests.local.gang import Gang
from tests.local.runs import manifest
from tests.local.test_parity import assert_same
from tests.local.training import Job, split, train

Named = tuple[str, dict[str, str]]
MLP: Named = ("kuangchao_worker.tasks.mlp:mlp", {"samples": "96", "layers": "4", "dropout": "0"})
DECODER: Named = ("tests.local.unruled:decoder", {})


def planned(ranks: int, model: MeasuredModel | None, **pins: Any) -> ParallelPlan:
    """The planner's, which knows of the model its sizes at most."""
    found = shipped.plan(
        PlanRequest.model_validate(
            {
                "devices": ranks,
                "perPod": ranks,
                "shapes": [DeviceShape(kind="cpu", memory_bytes=2**31, per_node=8, nodes=1)],
                "model": model,
                "training": {"globalBatch": 16},
                "parallelism": pins,
            }
        )
    )
    assert found.plan is not None, found.infeasible
    return found.plan


SIZES = MeasuredModel(parameters=13_633, activation_bytes_per_sample=4_096)
PLANS = [
    (DECODER, split(tensor=2)),
    (DECODER, split(pipeline=2, accumulation=2)),
    (DECODER, split(tensor=2, pipeline=2, accumulation=2)),
    (DECODER, split(tensor=2, data=2, sharding=Sharding.FULL, recompute=Recompute.FULL)),
    (MLP, planned(2, SIZES, tensor=2)),
    (MLP, split(tensor=4)),
    (MLP, planned(2, None, pipeline=2, stageLayers=[2, 3])),
    (MLP, planned(4, SIZES, tensor=2, pipeline=2, stageLayers=[2, 3])),
]
IDS = [f"{task[0].rpartition(':')[2]}: {plan.summary()}" for task, plan in PLANS]


@pytest.mark.parametrize(("task", "plan"), PLANS, ids=IDS)
def test_it_trains_like_one_process(gang: Gang, task: Named, plan: ParallelPlan) -> None:
    name, args = task
    alone = train(gang, Job(split(), name, args))
    assert_same(train(gang, Job(plan, name, args)), alone, 1e-10)


def test_a_job_of_a_model_that_is_not_described_runs_as_it_is_pinned(start) -> None:
    name, args = MLP
    spec = {"task": name, "taskArgs": args, "model": None, "checkpoint": None, "devices": {"count": 4, "perPod": 2}}
    data = start(manifest("data", steps=12, **spec))
    assert data.end() == 0, data.err + data.explain()
    pins = {"tensor": 2, "pipeline": 2, "stageLayers": [2, 3]}
    both = start(manifest("both", steps=12, **spec, parallelism=pins))
    assert both.end() == 0, both.err + both.explain()
    assert (data.result()["plan"], both.result()["plan"]) == ("dp4", "tp2pp2")
    expected = {step: float.fromhex(loss) for step, loss in data.curve().items()}
    assert {step: float.fromhex(loss) for step, loss in both.curve().items()} == pytest.approx(expected, rel=1e-5)
    both.assert_nothing_left()
