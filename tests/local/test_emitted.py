"""Plans that the planner makes train like one process: some of all that it can make, drawn by a fixed seed."""

import random

import pytest
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from kuangchao_contracts.plan import ParallelPlan
from kuangchao_worker.layers.state.split import split_tensor
from kuangchao_worker.tasks import load_task
from kuangchao_worker.tasks.decoder import BYTES
from tests.boundary.emitted import SMALL, Reference, emitted, references, requests
from tests.local.gang import Gang, Seat, built
from tests.local.test_parity import assert_same
from tests.local.training import Job, split, train

TRANSFORMER = "kuangchao_worker.tasks.text:transformer"
BATCH = 16
STEPS = 3
SAMPLES = {"transformer": 5, "moe": 3, "mlp": 1, "digits": 1}


def drawn(reference: Reference, count: int) -> list[ParallelPlan]:
    """Plans for eight ranks and for four that differ in what they divide, the first ones of a shuffled list."""
    found = [plan for request in requests(reference, (8, 4), (BATCH,)) for plan in emitted(request)]
    random.Random(11).shuffle(found)
    by_split = {(plan.summary(), plan.schedule, plan.sharding): plan for plan in reversed(found)}
    return sorted(by_split.values(), key=found.index)[:count]


def logits(seat: Seat, mesh: DeviceMesh, plan: ParallelPlan) -> tuple[int, ...]:
    """Shape of what the output layer gives on a rank."""
    del seat
    task = load_task(TRANSFORMER, SMALL)
    module = task.model()
    split_tensor(module, mesh["tensor"], task.rules, sequence=plan.sequence)
    tokens, _ = task.collate([task.dataset[0], task.dataset[1]])
    found = module(tokens)
    assert not isinstance(found, DTensor)
    return tuple(found.shape)


@pytest.mark.parametrize("sequence", [False, True])
def test_every_tensor_rank_has_all_logits_as_the_planner_counts_them(gang: Gang, sequence: bool) -> None:
    """See `Setting.logits_joined`, with which the planner estimates plans of ours."""
    shapes = gang.run(2, built, split(tensor=2, sequence=sequence), logits)
    assert shapes == [(2, int(SMALL["sequence"]), BYTES)] * 2


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
