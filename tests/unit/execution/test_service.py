"""Execution's port: what the recorded attempt allows, the join barrier and the registry behind it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import CheckpointPolicy, CheckpointStorage, TrainingJobStatus
from kuangchao_contracts.audit import AuditRecord, AuditSink
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.claims import SYSTEM, Claims, Grant
from kuangchao_contracts.errors import (
    ConflictError,
    FutureEpochError,
    InvalidInputError,
    PermissionDeniedError,
    RankMismatchError,
    StaleEpochError,
)
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.ports.execution import LaunchRequest, StopRequest
from kuangchao_contracts.run import Directive, Empty, HeartbeatRequest, JoinRequest, RankReport, RankState
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.execution.launcher import Launcher, PlanSource
from kuangchao_operator.layers.execution.launchspec import launch_spec
from kuangchao_operator.layers.execution.registry import AgentRegistry
from kuangchao_operator.layers.execution.service import ExecutionService
from tests.unit.execution.world import START, UID, World, make_job, make_pool

RESOURCE = "team/jobs/job"


class Store(JobStore):
    def __init__(self, job: TrainingJob | None) -> None:
        self.job, self.reads = job, 0

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        self.reads += 1
        return self.job if (namespace, name) == ("team", "job") else None

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        raise NotImplementedError


class Hands(Launcher, PlanSource):
    def __init__(self, plan: ParallelPlan | None) -> None:
        self.recorded, self.calls = plan, list[tuple[object, ...]]()

    async def plan(self, job: TrainingJob) -> ParallelPlan | None:
        return self.recorded

    async def launch(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        self.calls.append(("launch", job.metadata.uid, attempt, incarnation))

    async def stop(self, job: TrainingJob, request: StopRequest) -> None:
        self.calls.append(("stop", request.incarnation))

    async def reclaim(self, job: TrainingJob) -> None:
        self.calls.append(("reclaim", job.metadata.uid))

    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        self.calls.append(("renew", attempt, incarnation))


class Records(AuditSink):
    """Keeps what is recorded without waiting."""

    def __init__(self) -> None:
        self.kept: list[AuditRecord] = []

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:
        raise NotImplementedError

    def best_effort(self, record: AuditRecord) -> None:
        raise NotImplementedError

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:
        raise NotImplementedError

    def step_denied(self, record: AuditRecord) -> None:
        self.kept.append(record)


class Bench:
    """A service over a job of three pods with two ranks each that was just admitted."""

    def __init__(self, pods: int = 3) -> None:
        policy = CheckpointPolicy(every_minutes=2, storage=CheckpointStorage(claim_name="c"))
        world = World(make_job(count=2 * pods, per_pod=2, checkpoint=policy), make_pool({"a": 12, "b": 12}))
        world.settle()
        self.world, self.now = world, START
        self.store, self.hands = Store(world.job), Hands(world.plan)
        self.changes: list[str] = []
        self.registry = AgentRegistry(lambda: self.now, self.changes.append)
        self.sink = Records()
        self.service = self.serve(join_seconds=0)

    def serve(self, join_seconds: float) -> ExecutionService:
        return ExecutionService(
            self.store, self.hands, self.hands, self.registry, self.sink, join_seconds, lambda: self.now
        )

    def status(self, **changes: object) -> None:
        status = self.world.status.replace(**changes)
        self.world.job = self.store.job = self.world.job.model_copy(update={"status": status})

    async def join(self, index: int, **changes: object) -> object:
        return await self.service.join(worker(index), request(index, **changes))


def capability(op: str, **changes: object) -> Capability:
    fields: dict[str, object] = {
        "iss": "kuangchao/x",
        "sub": "layer:execution",
        "aud": "kc:execution",
        "iat": 1,
        "nbf": 1,
        "exp": 2,
        "jti": "j" * 22,
        "cap": (Grant(op=op, res=RESOURCE),),
        "ns": "team",
        "job": "job",
        "juid": UID,
        "att": 1,
        "polv": 1,
        "one": True,
        **changes,
    }
    return Capability(claims=Claims.model_validate(fields), kid="k", op=op, resource=RESOURCE, opid="o")


def worker(index: int, *, attempt: int = 1, incarnation: int = 0) -> Capability:
    return capability(
        "execution.join",
        sub="agent:team/job/x",
        att=attempt,
        one=False,
        ranks=f"{index * 2}-{index * 2 + 1}",
        pod=names.pod_name("job", UID, incarnation, index),
    )


def request(index: int, **changes: object) -> JoinRequest:
    fields = {
        "attempt": 1,
        "incarnation": 0,
        "pod_index": index,
        "pod": names.pod_name("job", UID, 0, index),
        "host": f"h{index}",
        "store_port": 29500 if index == 0 else 0,
        "store_prefix": "random" if index == 0 else "",
        **changes,
    }
    return JoinRequest.model_validate(fields)


def beat(index: int, *ranks: RankReport, **changes: object) -> HeartbeatRequest:
    return HeartbeatRequest(join=request(index, **changes), ranks=ranks)


def launch_request(bench: Bench, attempt: int = 1) -> LaunchRequest:
    plan = bench.world.plan
    assert plan is not None
    return LaunchRequest(attempt=attempt, incarnation=0, plan_hash=plan.hash)


async def test_launch_carries_out_the_recorded_attempt_and_no_other() -> None:
    bench = Bench()
    await bench.service.launch(capability("execution.launch"), launch_request(bench))
    assert bench.hands.calls == [("launch", UID, 1, 0)]
    with pytest.raises(ConflictError):
        await bench.service.launch(capability("execution.launch"), launch_request(bench, 2))
    bench.status(allocation=())
    with pytest.raises(ConflictError):
        await bench.service.launch(capability("execution.launch"), launch_request(bench))
    assert len(bench.hands.calls) == 1


async def test_stop_and_reclaim_work_without_an_attempt_and_on_a_job_that_is_gone() -> None:
    bench = Bench()
    idle = capability("execution.stop", juid=SYSTEM)
    await bench.service.stop(idle, StopRequest(incarnation=0, reason="Suspended"))
    await bench.service.reclaim(idle, Empty())
    assert bench.hands.calls == [("stop", 0), ("reclaim", UID)]
    bench.store.job = None
    assert (await bench.service.stop(idle, StopRequest(incarnation=0, reason="x"))).detail == "the job is gone"
    assert (await bench.service.reclaim(idle, Empty())).detail == "the job is gone"
    assert len(bench.hands.calls) == 2


async def test_gang_joins_together_and_learns_the_same() -> None:
    """pytorch/pytorch#137402, kubeflow/trainer#1790."""
    bench = Bench()
    first = await bench.service.join(worker(1), request(1))
    assert (first.ready, first.waiting_for, first.launch) == (False, "pods 0,2", None)
    await bench.join(2)
    replies = [await bench.service.join(worker(i), request(i)) for i in (0, 1, 2)]
    assert replies[0] == replies[1] == replies[2]
    reply = replies[0]
    assert reply.ready
    # rank 0 lives where the store is
    assert (reply.master_host, reply.master_port, reply.store_prefix) == ("h0", 29500, "random")
    assert reply.launch == launch_spec(bench.world.job, bench.world.plan or pytest.fail("no plan"))
    assert reply.launch is not None
    assert reply.launch.plan.world_size == 6
    assert (reply.launch.checkpoint_every_seconds, reply.launch.checkpoint_path) == (
        120,
        names.checkpoint_directory("job", UID),
    )
    assert bench.store.reads == 1


async def test_rank_zero_lives_where_the_store_is_whatever_the_order_of_names() -> None:
    """pytorch/pytorch#137402: pod 10 comes before pod 2 in text, and the last to join is pod 0."""
    bench = Bench(pods=12)
    for index in (10, 2, 11, *range(3, 10), 1):
        assert not (await bench.service.join(worker(index), request(index))).ready
    reply = await bench.service.join(worker(0), request(0))
    assert reply.ready
    assert (reply.master_host, reply.store_prefix) == ("h0", "random")
    assert await bench.service.join(worker(10), request(10)) == reply


async def test_gang_waits_for_the_store_of_pod_zero() -> None:
    bench = Bench()
    for index in (1, 2):
        await bench.join(index)
    reply = await bench.service.join(worker(0), request(0, store_port=0))
    assert (reply.ready, reply.waiting_for) == (False, "the store of pod 0")


async def test_restore_point_is_the_newest_of_the_ledger_and_fixed_for_the_attempt() -> None:
    bench = Bench()
    refs = [CheckpointRef(step=s, attempt=a, path=f"p{s}.{a}", digest="0" * 64) for s, a in ((30, 1), (25, 2))]
    bench.status(checkpoints=tuple(reversed(refs)))
    for index in range(3):
        await bench.join(index)
    assert (await bench.service.join(worker(1), request(1))).restore == refs[1]
    bench.status(checkpoints=())
    assert (await bench.service.join(worker(2), request(2))).restore == refs[1]


async def test_pod_speaks_for_itself_only() -> None:
    bench = Bench()
    with pytest.raises(PermissionDeniedError):
        await bench.service.join(worker(1), request(2))
    with pytest.raises(PermissionDeniedError):
        await bench.service.join(worker(1), request(2, pod=names.pod_name("job", UID, 0, 1)))
    with pytest.raises(RankMismatchError):
        await bench.service.heartbeat(worker(1), beat(1, RankReport(rank=0, state=RankState.EXITED, exit_code=0)))
    assert bench.registry.agents(UID) == ()


async def test_a_held_join_is_answered_when_the_last_pod_comes() -> None:
    bench = Bench()
    bench.service = bench.serve(join_seconds=60)
    early = [asyncio.create_task(bench.join(index)) for index in (0, 1)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in early)
    last = await bench.join(2)
    for reply in (*await asyncio.wait_for(asyncio.gather(*early), 100), last):
        assert reply.ready and reply.master_host == last.master_host  # type: ignore[attr-defined]


async def test_late_joiners_are_turned_away() -> None:
    """kubeflow/trainer#2000."""
    bench = Bench()
    bench.status(attempt=2, incarnation=1)
    with pytest.raises(StaleEpochError):
        await bench.service.join(worker(1), request(1))
    with pytest.raises(StaleEpochError):
        await bench.service.join(worker(1, attempt=2), request(1))
    with pytest.raises(FutureEpochError):
        await bench.service.join(worker(1), request(1, attempt=2))
    # a pod of the old incarnation with a token of the new attempt
    with pytest.raises(StaleEpochError):
        await bench.service.join(worker(1, attempt=2), request(1, attempt=2))
    assert bench.registry.agents(UID) == ()


async def test_tokens_that_name_a_pods_uid_are_good_from_that_pod_only() -> None:
    """Renewals, and all that is exchanged; the first bundle in a Secret is made before its pod and names none."""
    bench = Bench()
    name = names.pod_name("job", UID, 0, 1)
    bound = capability("execution.join", sub="agent:team/job/x", one=False, ranks="2-3", pod=name, puid="this-one")
    await bench.service.join(bound, request(1, pod_uid="this-one"))
    beats = HeartbeatRequest(join=request(1, pod_uid="this-one"), ranks=())
    await bench.service.heartbeat(bound, beats)
    for uid in ("", "another"):
        with pytest.raises(PermissionDeniedError):
            await bench.service.join(bound, request(1, pod_uid=uid))
        with pytest.raises(PermissionDeniedError):
            await bench.service.heartbeat(bound, beats.replace(join=request(1, pod_uid=uid)))
    await bench.service.join(worker(1), request(1, pod_uid="another"))


async def test_join_before_the_plan_is_recorded_may_be_tried_again() -> None:
    bench = Bench()
    bench.hands.recorded = None
    with pytest.raises(ConflictError):
        await bench.join(0)
    bench.hands.recorded = bench.world.plan
    await bench.join(0)


async def test_heartbeats_rebuild_the_gang_after_an_operator_restart() -> None:
    bench = Bench()
    for index in (0, 1):
        reply = await bench.service.heartbeat(
            worker(index), beat(index, RankReport(rank=index * 2, state=RankState.RUNNING))
        )
        assert (reply.directive, reply.attempt) == (Directive.CONTINUE, 1)
    reply_of_last = await bench.service.join(worker(2), request(2))
    assert reply_of_last.ready
    assert reply_of_last.master_host == "h0"


@pytest.mark.parametrize(
    "said",
    [
        {"ranks": [{"rank": 2, "state": "Running", "step": 10**400}]},
        {"ranks": [{"rank": 2, "state": "Exited", "exitCode": -(2**63)}]},
        {"leaseOverdueSeconds": 2**64},
        {"metrics": {"m" * 70_000: "1"}},
    ],
    ids=["step", "exit code", "seconds", "metrics"],
)
async def test_what_no_status_could_hold_is_refused_at_the_door(said: dict[str, Any]) -> None:
    """Else every later write about the job would fail, and it would keep its devices for ever."""
    bench = Bench()
    await bench.service.heartbeat(worker(1), beat(1, RankReport(rank=2, state=RankState.RUNNING, step=7)))
    wanted = HeartbeatRequest.model_validate({"join": request(1).wire(), "ranks": []} | said)
    with pytest.raises(InvalidInputError):
        await bench.service.heartbeat(worker(1), wanted)
    (agent,) = bench.registry.agents(UID)
    assert [report.step for report in agent.heartbeat.ranks] == [7]


async def test_agent_with_a_new_token_but_an_old_join_is_told_to_join_again() -> None:
    bench = Bench()
    reply = await bench.service.heartbeat(worker(1, attempt=2), beat(1))
    assert (reply.directive, reply.attempt) == (Directive.REJOIN, 2)
    assert bench.registry.agents(UID) == ()


async def test_stopped_incarnation_is_told_so_with_its_next_heartbeat() -> None:
    bench = Bench()
    await bench.service.stop(capability("execution.stop"), StopRequest(incarnation=0, reason="Suspended"))
    assert (await bench.service.heartbeat(worker(1), beat(1))).directive is Directive.STOP


def test_registry_wakes_the_job_for_news_and_not_for_steps() -> None:
    bench = Bench()
    running = [RankReport(rank=2, state=RankState.RUNNING, step=s) for s in (1, 2)]
    bench.registry.joined(UID, request(1))
    bench.registry.beat(UID, beat(1, running[0]))
    bench.registry.beat(UID, beat(1, running[1]))
    assert bench.changes == [UID, UID]
    bench.now += timedelta(seconds=3)
    ended = RankReport(rank=2, state=RankState.EXITED, exit_code=0)
    bench.registry.beat(UID, beat(1, ended))
    bench.now += timedelta(seconds=3)
    bench.registry.beat(UID, beat(1, ended))
    assert len(bench.changes) == 3
    fact = bench.registry.agents(UID)[0]
    assert (fact.first_exit_at, fact.seen_at) == (START + timedelta(seconds=3), START + timedelta(seconds=6))
    bench.registry.beat(UID, beat(1, attempt=2))
    assert bench.registry.agents(UID)[0].first_exit_at is None


def test_registry_never_goes_back_and_forgets_on_demand() -> None:
    bench = Bench()
    bench.registry.beat(UID, beat(1, attempt=3))
    bench.registry.beat(UID, beat(1, attempt=2))
    assert bench.registry.agents(UID)[0].heartbeat.join.attempt == 3
    bench.registry.forget(UID)
    assert bench.registry.agents(UID) == ()
    assert TrainingJobStatus().attempt == 0
