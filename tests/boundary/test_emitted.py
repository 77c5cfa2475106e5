"""What the planner can make for a task, the worker carries out: no plan is refused by the ranks that it is for."""

import itertools
import random

import pytest

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.layers.strategy import shipped
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for
from kuangchao_operator.layers.strategy.shipped import plan
from kuangchao_worker.layers.state.chain import chain, stage_links
from kuangchao_worker.rank.runnable import require_runnable
from tests.boundary.emitted import MOST, TASKS, Reference, asked, emitted, references, requests

Does = tuple[object, ...]
BACKEND = "kuangchao-cpu"
Made = dict[str, tuple[Reference, dict[Does, ParallelPlan]]]


@pytest.fixture(scope="module")
def made() -> Made:
    """By task, all that can be made for it; plans that have ranks do the same count once."""
    found = {}
    for reference in references():
        plans = (one for request in requests(reference, range(1, MOST + 1), (16, 24)) for one in emitted(request))
        found[reference.name] = (reference, {does(one): one for one in plans})
    return found


def does(one: ParallelPlan) -> Does:
    """What tells plans apart for the ranks."""
    sizes = (one.tensor, one.context, one.pipeline, one.data, one.expert, one.expert_tensor, one.virtual_stages)
    kinds = (one.sequence, one.recompute, one.sharding, one.schedule, one.stage_layers)
    return (*sizes, *kinds, one.micro_batch, one.accumulation_steps, one.shard_ranks)


@pytest.mark.parametrize("task", TASKS)
def test_every_plan_is_one_that_the_worker_carries_out(made: Made, task: str) -> None:
    reference, plans = made[task]
    refused = {}
    for one in plans.values():
        try:
            require_runnable(one, reference.rules)
        except InvalidInputError as error:
            refused[str(error)] = one.summary()
    assert not refused
    shaped = reference.spec["model"]["kind"] == "transformer"
    assert len(plans) > (1000 if shaped else 50)


@pytest.mark.parametrize("task", [name for name in TASKS if "text" in name])
def test_every_pipeline_cuts_the_model_once_over(made: Made, task: str) -> None:
    reference, plans = made[task]
    cuts = {(one.pipeline, one.virtual_stages, one.stage_layers): one for one in plans.values() if one.pipeline > 1}
    for one in cuts.values():
        stages = (
            stage_links(reference.module, reference.rules, one, n) for n in range(one.pipeline * one.virtual_stages)
        )
        assert tuple(itertools.chain(*stages)) == chain(reference.module, reference.rules)
    assert len(cuts) > 3


def test_all_that_the_task_has_rules_for_is_used_by_some(made: Made) -> None:
    plans = [one for _, found in made.values() for one in found.values()]
    for size in ("tensor", "pipeline", "context", "expert", "data", "virtual_stages"):
        assert any(getattr(one, size) > 1 for one in plans), size
    assert {one.schedule for one in plans} == set(Schedule) - {Schedule.ZERO_BUBBLE_H2}
    assert any(one.tensor > 1 and one.pipeline > 1 and one.data > 1 for one in plans)
    assert any(1 < one.shard_ranks < one.data * one.context for one in plans)
    assert any(one.tensor > 1 and one.expert > one.tensor and one.pipeline > 1 for one in plans)


def beside_the_process(mebibytes: int) -> int:
    """Memory of a device on which a rank has so much for its model."""
    known = shipped.knowledge().calibration
    return device_bytes_for(known.backends[BACKEND].runtime_bytes + mebibytes * 2**20, BACKEND, known)


def test_whatever_memory_and_objective_the_plan_is_one_of_these(made: Made) -> None:
    """A fixed sample of jobs as people write them; with little memory some have no plan."""
    draw, feasible = random.Random(7), 0
    for _ in range(60):
        reference, plans = made[draw.choice(list(TASKS))]
        world, memory = draw.randint(1, MOST), beside_the_process(draw.choice((10, 14, 23, 81)))
        pins = {"objective": draw.choice(("time", "memory"))}
        found = plan(asked(reference, world, per_pod=world, batch=draw.choice((16, 24)), memory=memory, **pins)).plan
        if found is not None:
            feasible += 1
            assert does(found) in plans
    assert feasible > 20
