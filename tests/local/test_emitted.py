"""Plans that the planner makes train like one process: some of all that it can make, drawn by a fixed seed."""

import random

import pytest

from kuangchao_contracts.plan import ParallelPlan
from tests.boundary.emitted import Reference, emitted, references, requests
from tests.local.gang import Gang
from tests.local.test_parity import assert_same
from tests.local.training import Job, split, train

BATCH = 16
STEPS = 3
SAMPLES = {"transformer": 5, "moe": 3, "mlp": 1, "digits": 1}


def drawn(reference: Reference, count: int) -> list[ParallelPlan]:
    """Plans for eight ranks and for four that differ in what they divide, the first ones of a shuffled list."""
    found = [plan for request in requests(reference, (8, 4), (BATCH,)) for plan in emitted(request)]
    random.Random(11).shuffle(found)
    by_split = {(plan.summary(), plan.schedule, plan.sharding): plan for plan in reversed(found)}
    return sorted(by_split.values(), key=found.index)[:count]


@pytest.fixture(scope="module")
def tasks() -> dict[str, Reference]:
    """By the task's function."""
    return {reference.name.partition(":")[2]: reference for reference in references()}


@pytest.mark.parametrize("task", SAMPLES)
def test_plans_of_the_planner_train_like_one_process(gang: Gang, tasks: dict[str, Reference], task: str) -> None:
    reference = tasks[task]
    alone = train(gang, Job(split(batch=BATCH), reference.name, reference.args, steps=STEPS))
    plans = drawn(reference, SAMPLES[task])
    assert len(plans) == SAMPLES[task]
    for plan in plans:
        assert_same(train(gang, Job(plan, reference.name, reference.args, steps=STEPS)), alone, 1e-9)
