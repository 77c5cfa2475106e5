"""`kuangchao why`: numbers of this moment and what to do."""

from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution.why import explain
from tests.unit.execution.world import World, holder, make_job, make_pool, waiting


def test_queued_job_is_explained_with_need_free_holders_and_position() -> None:
    pool = make_pool(
        {"a": 4, "b": 4}, lost=("b",), claims=(holder("big", "a", 3),), waiting=(waiting("old", 4, age=60),)
    )
    world = World(make_job(count=4), pool)
    world.settle()
    answer = explain(world.job, pool)
    assert (answer.phase, answer.reason, answer.position) == (Phase.QUEUED, Reason.WAITING_FOR_QUOTA, 2)
    assert (answer.need, answer.free, answer.total, answer.reserved) == (4, 1, 8, 3)
    assert [(h.job, h.devices) for h in answer.holders] == [("team/big", 3)]
    assert answer.ahead == ("team/old",)
    assert answer.unhealthy == ("b: not ready",)
    assert answer.advice == "wait, or lower spec.devices.count"
    assert "needs 4 devices" in answer.message


def test_numbers_are_of_now_and_not_of_the_last_write() -> None:
    world = World(make_job(count=2), make_pool({"a": 2}, claims=(holder("h", "a", 2),)))
    world.settle()
    now = explain(world.job, make_pool({"a": 2}, claims=(holder("h", "a", 1),)))
    assert now.free == 1
    assert "1 of 2 free" in now.message


def test_job_without_pool_and_unseen_job() -> None:
    world = World()
    world.pool = None
    world.settle()
    answer = explain(world.job, None)
    assert (answer.reason, answer.position, answer.free) == (Reason.POOL_NOT_FOUND, None, None)
    assert answer.advice is not None
    assert explain(make_job(), make_pool()).reason == Reason.PENDING_EVALUATION


def test_unseen_job_says_where_to_look() -> None:
    assert "does not serve namespace" in explain(make_job(), None).message
    foreign = explain(make_job(managed_by="kueue.x-k8s.io/multikueue"), None)
    assert "spec.managedBy='kueue.x-k8s.io/multikueue' gives the job to another controller" in foreign.message
    assert "'kuangchao.io/operator'" in foreign.message


def test_running_job_says_so() -> None:
    world = World().run()
    answer = explain(world.job, world.pool)
    assert (answer.phase, answer.reason, answer.message) == (
        Phase.RUNNING,
        "Running",
        "2 ranks run on 2 nodes, attempt 1",
    )
