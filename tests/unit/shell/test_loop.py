"""The loop of one job against in-memory ports: order, compare-and-swap, failure, and letting go."""

import asyncio
from datetime import timedelta

import pytest

from kuangchao_contracts.api.meta import Condition, ConditionStatus
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.errors import ChildRefusedError, UnavailableError
from kuangchao_contracts.reasons import ConditionType, Reason
from kuangchao_operator.layers.execution.model import Decision, Emit, JobSnapshot, Launch, Reclaim, Stop
from kuangchao_operator.shell import loop as loop_module
from tests.unit.shell.fakes import NOW, Rig, allocated, job

LAUNCH = Launch(attempt=1, incarnation=0)
STOP = Stop(incarnation=0, reason=Reason.SUSPENDED)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "DEBOUNCE", 0.0)
    monkeypatch.setattr(loop_module, "FIRST_DELAY", 0.01)


def finished(status: TrainingJobStatus) -> TrainingJobStatus:
    condition = Condition(
        type=ConditionType.COMPLETE, status=ConditionStatus.TRUE, reason="Succeeded", last_transition_time=NOW
    )
    return status.replace(conditions=(condition,), allocation=())


async def until(probe: object, what: str = "") -> None:
    async with asyncio.timeout(100):
        while not probe():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def rest() -> None:
    """Let every task go as far as it can: without pauses of its own a loop that would spin has spun by then."""
    for _ in range(200):
        await asyncio.sleep(0)


async def run_until(rig: Rig, probe: object, name: str = "j") -> None:
    task = asyncio.create_task(rig.loop(name).run())
    try:
        await until(probe)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def launching(snapshot: JobSnapshot) -> Decision:
    """Reserve, launch, then rest."""
    if snapshot.job.status is None:
        return Decision(status=allocated(), actions=(Emit(reason=Reason.ADMITTED, message="in"), LAUNCH))
    if snapshot.launched != (1, 0):
        return Decision(status=None, actions=(LAUNCH,))
    return Decision(status=None)


async def test_the_status_is_stored_before_its_actions_and_the_fence_follows_it() -> None:
    rig = Rig(launching, job())
    seen: list[object] = []
    original = rig.actions.run

    async def run(target, action):
        seen.append((action.kind, rig.world.jobs["j"].status is not None, rig.fence.attempts.get("uid-j")))
        return await original(target, action)

    rig.actions.run = run  # type: ignore[method-assign]
    await run_until(rig, lambda: rig.world.done == ["launch"])
    assert seen == [("emit", True, 1), ("launch", True, 1)]
    assert rig.world.writes == 1


async def test_a_stable_job_is_left_alone_until_an_event() -> None:
    passes = 0

    def decide(snapshot: JobSnapshot) -> Decision:
        nonlocal passes
        passes += 1
        return Decision(status=None)

    rig = Rig(decide, job())
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await until(lambda: passes == 1)
    await rest()
    assert passes == 1
    loop.wake()
    await until(lambda: passes == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert rig.world.writes == 0


async def test_a_write_in_between_makes_the_loop_decide_again() -> None:
    decided: list[int] = []

    def decide(snapshot: JobSnapshot) -> Decision:
        status = snapshot.job.status or TrainingJobStatus()
        decided.append(status.restarts)
        if status.attempt == 1:
            return Decision(status=None)
        return Decision(status=status.replace(attempt=1))

    rig = Rig(decide, job())
    rig.world.before_write = lambda: rig.world.set_status("j", TrainingJobStatus(restarts=7))
    await run_until(rig, lambda: rig.world.jobs["j"].status == TrainingJobStatus(restarts=7, attempt=1))
    assert decided[:2] == [0, 7]
    assert "refresh" in rig.world.done


async def test_two_jobs_of_a_pool_never_reserve_the_same_devices() -> None:
    rig = Rig(lambda s: Decision(status=None), job("a"), job("b"))

    def decide(snapshot: JobSnapshot) -> Decision:
        taken = any(j.status and j.status.allocation for j in rig.world.jobs.values())
        if taken or (snapshot.job.status and snapshot.job.status.allocation):
            return Decision(status=None)
        return Decision(status=allocated())

    rig.ports = loop_module.LoopPorts(**{f: getattr(rig.ports, f) for f in rig.ports.__slots__} | {"decide": decide})
    tasks = [asyncio.create_task(rig.loop(name).run()) for name in ("a", "b")]
    await until(lambda: rig.world.writes == 1)
    await rest()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(1 for j in rig.world.jobs.values() if j.status and j.status.allocation) == 1


async def test_a_refused_child_is_shown_to_the_next_decision_and_not_asked_for_hot() -> None:
    tries = 0

    def decide(snapshot: JobSnapshot) -> Decision:
        if snapshot.job.status is None:
            return Decision(status=allocated())
        if snapshot.child_error:
            wanted = snapshot.job.status.replace(plan_summary=snapshot.child_error[:64])
            changed = wanted if wanted != snapshot.job.status else None
            return Decision(status=changed, actions=(LAUNCH,))
        return Decision(status=None, actions=() if snapshot.launched else (LAUNCH,))

    rig = Rig(decide, job())
    original = rig.actions.run

    async def run(target, action):
        nonlocal tries
        tries += 1
        return await original(target, action)

    rig.actions.run = run  # type: ignore[method-assign]
    rig.actions.errors["launch"] = [ChildRefusedError("exceeded quota", final=False)]
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await until(lambda: (rig.world.jobs["j"].status or allocated()).plan_summary == "exceeded quota")
    await rest()
    assert tries == 1
    rig.world.now += timedelta(seconds=2)
    loop.wake()
    await until(lambda: rig.world.done == ["launch"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert tries == 2


async def test_nothing_is_done_behind_an_action_that_failed() -> None:
    def decide(snapshot: JobSnapshot) -> Decision:
        if snapshot.job.status is None:
            return Decision(status=allocated())
        actions = (STOP, LAUNCH) if snapshot.stop_done is None else (LAUNCH,)
        return Decision(status=None, actions=() if snapshot.launched else actions)

    rig = Rig(decide, job())
    rig.actions.errors["stop"] = [UnavailableError("API server")]
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await until(lambda: not rig.actions.errors["stop"])
    loop.wake()
    await rest()
    assert rig.world.done == []
    rig.world.now += timedelta(seconds=2)
    loop.wake()
    await until(lambda: rig.world.done == ["stop", "launch"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_owner_need_not_wait_for_a_back_off() -> None:
    def decide(snapshot: JobSnapshot) -> Decision:
        return Decision(status=None, actions=() if snapshot.launched else (LAUNCH,))

    rig = Rig(decide, job(status=allocated()))
    rig.actions.errors["launch"] = [UnavailableError("API server")]
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await until(lambda: not rig.actions.errors["launch"])
    loop.wake(urgent=True)
    await until(lambda: rig.world.done == ["launch"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_finished_job_is_reclaimed_released_and_left() -> None:
    def decide(snapshot: JobSnapshot) -> Decision:
        if snapshot.reclaimed:
            return Decision(status=None, released=True)
        return Decision(status=None, actions=(Reclaim(),))

    rig = Rig(decide, job(status=finished(allocated())))
    rig.world.finalizers.add("j")
    await asyncio.wait_for(rig.loop().run(), 100)
    assert rig.world.done == ["reclaim"]
    assert rig.world.finalizers == set()
    assert rig.fence.attempts["uid-j"] is None


async def test_a_finished_job_with_a_time_to_live_keeps_its_loop() -> None:
    rig = Rig(lambda s: Decision(status=None, released=True, wake_after_seconds=60), job(status=finished(allocated())))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rig.loop().run(), 0.05)


async def test_a_deleted_job_is_cleaned_up_before_it_may_vanish() -> None:
    def decide(snapshot: JobSnapshot) -> Decision:
        return Decision(status=None, actions=() if snapshot.reclaimed else (Reclaim(),), released=snapshot.reclaimed)

    rig = Rig(decide, job(status=allocated(), deleting=True))
    rig.world.finalizers.add("j")
    loop = rig.loop()
    task = asyncio.create_task(loop.run())
    await until(lambda: "j" not in rig.world.jobs)
    assert rig.world.done == ["reclaim"]
    loop.wake()
    await asyncio.wait_for(task, 100)


async def test_a_job_of_the_same_name_is_another_job() -> None:
    rig = Rig(launching, job())
    other = loop_module.JobLoop(loop_module.JobKey("ns", "j", "older"), rig.ports)
    await asyncio.wait_for(other.run(), 100)
    assert rig.world.writes == 0
    assert rig.fence.attempts == {"older": None}


async def test_a_decision_that_never_settles_does_not_spin() -> None:
    def decide(snapshot: JobSnapshot) -> Decision:
        status = snapshot.job.status or TrainingJobStatus()
        return Decision(status=status.replace(restarts=status.restarts + 1))

    rig = Rig(decide, job())
    loop_module.FIRST_DELAY = 60.0
    task = asyncio.create_task(rig.loop().run())
    await until(lambda: rig.world.writes == loop_module.MAX_TURNS)
    await rest()
    assert rig.world.writes == loop_module.MAX_TURNS
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
