"""A plan that did not fit is replaced under a new attempt, with both figures; it never comes again."""

from collections.abc import Callable
from typing import Any

import pytest

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import MAX_MEMORY_FAILURES
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.plan import DeviceShape, Infeasible, ParallelPlan, PlanRequest, StageMemory, TrainingSpec
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution.model import Emit, Launch, Plan, RecordPlan, Replan, Stop
from kuangchao_operator.layers.execution.replan import estimate, words
from tests.unit.execution import world as worlds
from tests.unit.execution.world import World, make_job, make_pool

GIB = 2**30
OOM: dict[str, Any] = {
    "error": "RuntimeError: DefaultCPUAllocator: can't allocate memory",
    "error_kind": "OutOfMemory",
    "peak_memory_bytes": 3 * GIB,
    "memory_limit_bytes": 4 * GIB,
    "section": "train",
}
BOTH = "measured peak 3.0 GiB where 2.0 GiB were estimated"
NONE_LEFT = Infeasible(
    reason="Infeasible", message="nothing fits", field="deviceMemory", value="1.0 GiB", nearest="8.0 GiB"
)

GPUS = make_pool(
    spec=ResourcePoolSpec(device_type=DeviceKind.GPU),
    shapes=(DeviceShape(kind="gpu", memory_bytes=GIB, per_node=4, nodes=2),),
)


def _planned(request: PlanRequest) -> ParallelPlan:
    stage = StageMemory(
        stage=0,
        parameters_bytes=0,
        gradients_bytes=0,
        optimizer_bytes=0,
        activations_bytes=0,
        other_bytes=0,
        total_bytes=GIB,
        reserved_bytes=2 * GIB,
    )
    return _make_plan(request).replace(micro_batch=8, accumulation_steps=2, memory=(stage,))


_make_plan = worlds.make_plan


@pytest.fixture(autouse=True)
def _plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "make_plan", _planned)


def ran_out(world: World, step: int = 5, **report: Any) -> World:
    """Rank 1 runs out of memory, and everything that follows has happened."""
    world.beat(step, exits={1: 1}, **(OOM | report))
    world.settle()
    return world


def again(world: World) -> World:
    """The new gang runs."""
    world.start_pods()
    world.settle()
    world.beat(1)
    world.settle()
    return world


def test_the_attempt_is_closed_before_strategy_is_asked_and_the_new_plan_runs_in_new_pods() -> None:
    world = World().run(step=5)
    first = world.status.plan_hash
    world.beat(5, exits={1: 1}, **OOM)
    world.turn()
    decision = world.turn()
    assert decision.status is not None
    assert (decision.status.attempt, decision.status.incarnation, decision.status.plan_hash) == (2, 1, None)
    assert not any(isinstance(action, Replan) for action in decision.actions)
    world.settle()
    (asked,) = world.actions(Replan)
    assert (asked.request.previous.hash, asked.request.request.measured_peak_bytes) == (first, 3 * GIB)
    assert world.status.plan_hash != first
    assert world.actions(RecordPlan)[-1].plan.micro_batch == 4
    kinds = [type(action) for action in world.log]
    assert kinds.index(Stop) < kinds.index(Replan), "nothing of the old attempt lives on"
    assert [(launch.attempt, launch.incarnation) for launch in world.actions(Launch)] == [(1, 0), (2, 1)]
    again(world)
    assert world.status.phase is Phase.RUNNING
    assert (world.status.restarts, world.status.infrastructure_restarts) == (0, 1)


def test_both_figures_and_both_plans_are_in_condition_event_and_status() -> None:
    world = again(ran_out(World().run(step=5)))
    told = f"dp2 micro-batch 4 in place of dp2 micro-batch 8, which ran out of memory at step 5: {BOTH}"
    planned = world.condition(C.PLANNED)
    assert (planned.reason, planned.status) == (Reason.REPLANNED, "True")
    assert planned.message.endswith(told)
    assert [e.message for e in world.actions(Emit) if e.reason is Reason.REPLANNED] == [planned.message]
    restart = next(event for event in world.actions(Emit) if event.reason is Reason.OUT_OF_MEMORY)
    assert f"{BOTH}, limit 4.0 GiB (section train); rank 1" in restart.message
    (failure,) = world.status.out_of_memory
    assert (failure.plan, failure.measured_bytes, failure.estimated_bytes) == ("dp2 micro-batch 8", 3 * GIB, 2 * GIB)
    assert (failure.attempt, failure.step) == (1, 5)
    last = world.status.last_failure
    assert last is not None
    assert (last.peak_memory_bytes, last.memory_limit_bytes, last.section) == (3 * GIB, 4 * GIB, "train")


def test_a_second_peak_is_measured_under_the_second_plan() -> None:
    world = again(ran_out(World().run(step=5)))
    ran_out(world, step=5, peak_memory_bytes=2 * GIB)
    first, second = world.actions(Replan)
    assert second.request.previous.micro_batch == 4
    assert second.request.request.measured_peak_bytes == 2 * GIB
    assert world.actions(RecordPlan)[-1].plan.micro_batch == 2
    assert first.request.previous.micro_batch == 8
    assert [failure.attempt for failure in world.status.out_of_memory] == [1, 2]


def test_where_no_plan_is_left_the_job_fails_with_both_figures_and_the_nearest_legal_value() -> None:
    world = World().run(step=5)
    world.infeasible = NONE_LEFT
    ran_out(world)
    assert (world.status.phase, world.reason(C.FAILED)) == (Phase.FAILED, Reason.OUT_OF_MEMORY)
    message = world.condition(C.FAILED).message
    assert message.startswith(f"dp2 micro-batch 8 ran out of memory at step 5: {BOTH}; no other plan is left")
    assert message.endswith("nearest legal deviceMemory: 8.0 GiB")
    assert (world.pods, world.status.allocation, world.claim()) == ({}, (), None)


def test_a_job_that_ran_under_its_second_plan_does_not_fail_for_a_pool_that_has_shrunk() -> None:
    world = again(ran_out(World().run(step=5)))
    world.infeasible = NONE_LEFT
    world.plan = None
    world.change_pod(1, disrupted=True, deleting=True)
    world.facts = {key: value for key, value in world.facts.items() if not key.startswith("outcome")}
    world.settle()
    assert (world.status.phase, world.reason(C.STALLED)) == (Phase.STALLED, Reason.INFEASIBLE)
    assert BOTH in world.condition(C.STALLED).message


def test_a_plan_that_failed_is_not_run_again_though_strategy_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "smaller_plan", lambda asked: asked.previous.replace(request_digest="0" * 64))
    world = ran_out(World().run(step=5))
    assert (world.status.phase, world.reason(C.FAILED)) == (Phase.FAILED, Reason.OUT_OF_MEMORY)
    assert "no other plan is left" in world.condition(C.FAILED).message
    assert len(world.actions(Launch)) == 1


def test_so_many_plans_are_tried_and_no_more() -> None:
    world = World().run(step=5)
    for number in range(MAX_MEMORY_FAILURES):
        old = world.status.out_of_memory
        failure = (old or ran_out(World().run()).status.out_of_memory)[-1].replace(plan=str(number))
        status = world.status.replace(out_of_memory=(*old, failure))
        world.job = world.job.model_copy(update={"status": status})
    ran_out(world)
    assert world.status.phase is Phase.FAILED
    assert f"after {MAX_MEMORY_FAILURES} plans that did not fit either" in world.condition(C.FAILED).message


def test_a_command_fails_with_the_figures() -> None:
    world = ran_out(World(make_job(command=("train.py",))).run(step=5))
    assert (world.status.phase, world.reason(C.FAILED)) == (Phase.FAILED, Reason.OUT_OF_MEMORY)
    assert world.condition(C.FAILED).message.startswith(BOTH)
    assert not world.actions(Replan)


def test_without_a_figure_the_same_plan_is_tried_once_more() -> None:
    world = ran_out(World().run(step=5), peak_memory_bytes=None)
    assert (world.status.attempt, world.status.incarnation, world.status.restarts) == (2, 0, 1)
    assert not world.actions(Replan)
    ran_out(world, peak_memory_bytes=None)
    assert world.status.phase is Phase.FAILED


@pytest.mark.parametrize(("per_pod", "share"), [(1, 2 * GIB), (2, GIB)])
def test_a_container_that_was_killed_needs_more_than_its_limit(per_pod: int, share: int) -> None:
    world = World(make_job(count=2 * per_pod, per_pod=per_pod)).run(step=5)
    world.change_pod(1, exit_code=137, exit_reason="OOMKilled", phase="Failed", memory_limit_bytes=2 * GIB)
    world.settle()
    (failure,) = world.status.out_of_memory
    assert failure.measured_bytes == share


def _container_killed(world: World) -> None:
    world.change_pod(1, exit_code=137, exit_reason="OOMKilled", phase="Failed", memory_limit_bytes=2 * GIB)


def _rank_killed(world: World) -> None:
    world.beat(5, exits={1: -9}, **OOM)


@pytest.mark.parametrize("killed", [_container_killed, _rank_killed])
def test_a_kill_for_main_memory_says_nothing_of_a_plan_for_gpus(killed: Callable[[World], None]) -> None:
    world = World(pool=GPUS).run(step=5)
    killed(world)
    world.settle()
    assert (world.status.attempt, world.status.out_of_memory, world.status.restarts) == (2, (), 1)
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == Reason.OUT_OF_MEMORY
    assert not world.actions(Replan)


def test_other_faults_keep_the_second_plan_and_so_does_a_restart_of_the_operator() -> None:
    world = again(ran_out(World().run(step=5)))
    second, plans = world.status.plan_hash, len(world.actions(Plan))
    world.facts.clear()
    world.agents.clear()
    world.started = world.now
    world.change_pod(1, disrupted=True, deleting=True)
    world.settle()
    assert world.status.plan_hash == second
    assert (len(world.actions(Plan)), len(world.actions(Replan))) == (plans, 1)


def test_a_suspended_job_comes_back_under_the_plan_that_fits() -> None:
    world = again(ran_out(World().run(step=5)))
    second = world.status.plan_hash
    world.edit(suspend=True)
    world.settle()
    world.pass_time(100)
    world.settle()
    world.plan = None
    world.edit(suspend=False)
    world.settle()
    assert world.status.plan_hash == second
    assert world.reason(C.PLANNED) == Reason.REPLANNED


def _wants_another_batch(world: World) -> None:
    world.edit(training=TrainingSpec(global_batch=16))


def _has_mended_the_cause(world: World) -> None:
    world.edit(retry_generation=1)


@pytest.mark.parametrize("change", [_wants_another_batch, _has_mended_the_cause])
def test_old_figures_say_nothing_of_another_wish_or_after_a_new_budget(change: Any) -> None:
    world = again(ran_out(World().run(step=5)))
    world.edit(suspend=True)
    world.settle()
    world.pass_time(100)
    world.settle()
    world.plan = None
    change(world)
    world.edit(suspend=False)
    world.settle()
    assert world.actions(RecordPlan)[-1].plan.micro_batch == 8
    assert world.reason(C.PLANNED) == Reason.PLANNED


def test_the_place_in_the_queue_does_not_bring_the_first_plan_back() -> None:
    """A gang that must wait for devices has no recorded plan: strategy is asked the same again, not from the start."""
    world = World().run(step=5)
    world.beat(5, exits={1: 1}, **OOM)
    world.turn()
    world.turn()
    world.pool = make_pool(claims=(worlds.holder("h", "a", 4), worlds.holder("i", "b", 4)))
    world.settle()
    assert world.status.phase in (Phase.QUEUED, Phase.RESTARTING)
    world.facts = {key: value for key, value in world.facts.items() if not key.startswith("outcome")}
    world.pool = make_pool()
    world.settle()
    assert world.actions(RecordPlan)[-1].plan.micro_batch == 4


def test_without_the_object_of_the_plan_that_failed_strategy_gets_the_peak_alone() -> None:
    world = World().run(step=5)
    world.plans.clear()
    world.beat(5, exits={1: 1}, **OOM)
    world.turn()
    world.turn()
    world.turn()
    asked = world.actions(Plan)[-1].request
    assert asked.measured_peak_bytes == 3 * GIB


def test_the_estimate_is_what_was_measured_the_same_way() -> None:
    plan = _planned(PlanRequest(devices=2, per_pod=1, shapes=(), training=TrainingSpec()))
    assert (estimate(plan, DeviceKind.CPU), estimate(plan, DeviceKind.GPU)) == (2 * GIB, GIB)
    assert estimate(None, DeviceKind.CPU) is None
    world = ran_out(World(pool=GPUS).run(step=5))
    assert world.status.out_of_memory[0].estimated_bytes == GIB


def test_plans_that_do_different_things_have_different_words() -> None:
    plan = _planned(PlanRequest(devices=2, per_pod=1, shapes=(), training=TrainingSpec()))
    changes: list[dict[str, Any]] = [
        {}, {"micro_batch": 4}, {"sharding": "full"}, {"sharding": "full", "shard_ranks": 2}, {"recompute": "full"},
        {"pipeline": 2}, {"pipeline": 2, "schedule": "gpipe"}, {"pipeline": 2, "stage_layers": (1, 2)},
        {"tensor": 2}, {"tensor": 2, "sequence": True}, {"pipeline": 2, "stage_layers": (1,) * 500},
        {"pipeline": 2, "stage_layers": (1,) * 499 + (2,)}, {"expert": 2}, {"expert": 2, "expert_tensor": 2},
        {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 2},
    ]  # fmt: skip
    said = [words(plan.replace(**change)) for change in changes]
    assert len(set(said)) == len(said)
    assert max(map(len, said)) <= 256
