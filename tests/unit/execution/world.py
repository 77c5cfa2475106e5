"""A world for the pure core: it stores what `decide` wants and carries out its actions on made-up facts."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from kuangchao_contracts import names
from kuangchao_contracts.api import ObjectMeta, TrainingJob
from kuangchao_contracts.api.meta import Condition
from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import Devices, NodeShare, Priority, TrainingJobSpec, TrainingJobStatus
from kuangchao_contracts.faults import FaultDecision, Recovery
from kuangchao_contracts.plan import DeviceShape, Infeasible, ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_contracts.ports.strategy import ReplanRequest
from kuangchao_contracts.ranges import from_ranges
from kuangchao_contracts.reasons import ConditionType, Reason
from kuangchao_contracts.run import HeartbeatRequest, JoinRequest, RankReport, RankState
from kuangchao_operator.layers.execution.decide import decide
from kuangchao_operator.layers.execution.facts import claim
from kuangchao_operator.layers.execution.model import (
    AgentFact,
    Assess,
    Claim,
    Decision,
    DeleteJob,
    Emit,
    JobSnapshot,
    Launch,
    NodeSlots,
    Plan,
    PodFact,
    PoolFacts,
    Reclaim,
    RecordPlan,
    RenewTokens,
    Replan,
    Stop,
    StopDone,
    Waiting,
)
from kuangchao_operator.layers.state.decide import assess

START = datetime(2026, 1, 1, tzinfo=UTC)
UID = "uid-1"


def make_job(name: str = "job", uid: str = UID, *, count: int = 2, per_pod: int = 1, **spec: Any) -> TrainingJob:
    """A small job that takes a task unless `command` is given."""
    spec.setdefault("task", None if "command" in spec else "tasks.digits:train")
    return TrainingJob(
        metadata=ObjectMeta(name=name, namespace="team", uid=uid, generation=1, creation_timestamp=START),
        spec=TrainingJobSpec(pool="pool", devices=Devices(count=count, per_pod=per_pod), **spec),
    )


def verdict(
    recovery: Recovery, reason: Reason = Reason.RANK_EXITED, *, charged: bool = True, avoid: tuple[str, ...] = ()
) -> FaultDecision:
    """What the state layer may say of a fault."""
    return FaultDecision(recovery=recovery, reason=reason, message="why", charged=charged, avoid_nodes=avoid)


def make_pool(nodes: dict[str, int] | None = None, *, lost: tuple[str, ...] = (), **changes: Any) -> PoolFacts:
    """A CPU pool; two nodes of four devices unless said otherwise. Nodes in `lost` are not ready."""
    nodes = {"a": 4, "b": 4} if nodes is None else nodes
    shapes = (
        (DeviceShape(kind="cpu", memory_bytes=2**30, per_node=max(nodes.values()), nodes=len(nodes)),) if nodes else ()
    )
    facts = {
        "name": "pool",
        "spec": ResourcePoolSpec(),
        "shapes": shapes,
        "nodes": tuple(NodeSlots(node=n, devices=d, ready=n not in lost) for n, d in nodes.items()),
    }
    return PoolFacts.model_validate({**facts, **changes})


def make_plan(request: PlanRequest) -> ParallelPlan:
    """A data-parallel plan."""
    return ParallelPlan(
        world_size=request.devices,
        per_pod=request.per_pod,
        pods=request.devices // request.per_pod,
        data=request.devices,
        micro_batch=1,
        accumulation_steps=1,
        global_batch=request.training.global_batch,
        groups=(),
        memory_checked=True,
        device_memory_bytes=2**30,
        request_digest=request.content_hash(),
    )


def smaller_plan(request: ReplanRequest) -> ParallelPlan:
    """The plan that failed, with half of its micro-batch."""
    previous = request.previous
    return previous.replace(
        micro_batch=max(1, previous.micro_batch // 2),
        accumulation_steps=previous.accumulation_steps * 2,
        request_digest=request.request.content_hash(),
    )


def waiting(
    name: str, devices: int, *, age: int = 0, per_pod: int = 1, priority: Priority = Priority.PRODUCTION
) -> Waiting:
    """A job in the queue, older by `age` seconds."""
    return Waiting(
        namespace="team",
        job=name,
        uid=f"uid-{name}",
        priority=priority,
        created=START - timedelta(seconds=age),
        devices=devices,
        per_pod=per_pod,
    )


def holder(name: str, node: str, devices: int, priority: Priority = Priority.PRODUCTION) -> Claim:
    """A job that holds devices of one node."""
    return Claim(
        namespace="team", job=name, priority=priority, shares=(NodeShare(node=node, devices=devices, pods="0"),)
    )


class World:
    """One job, its pool and its pods. Actions take effect at once, except that pods end only when told to."""

    def __init__(self, job: TrainingJob | None = None, pool: PoolFacts | None = None) -> None:
        self.job = job or make_job()
        self.pool: PoolFacts | None = pool or make_pool()
        self.now = START + timedelta(hours=1)
        self.started = START
        self.pods: dict[str, PodFact] = {}
        self.agents: dict[int, AgentFact] = {}
        self.facts: dict[str, Any] = {}
        self.plan: ParallelPlan | None = None
        self.plans: dict[str, ParallelPlan] = {}
        """Every plan that was recorded, by hash."""
        self.infeasible: Infeasible | None = None
        self.verdict: FaultDecision | None = None
        self.assessed: list[Assess] = []
        self.log: list[Any] = []
        self.writes = 0
        self.deleted = False
        self.linger = False
        """Stopped pods stay Terminating until `bury`."""

    # ---- facts

    def snapshot(self) -> JobSnapshot:
        return JobSnapshot(
            now=self.now,
            job=self.job,
            pool=self.pool,
            plan=self.plan,
            failed_plan=self.failed_plan(),
            pods=tuple(self.pods.values()),
            agents=tuple(self.agents.values()),
            operator_started_at=self.started,
            **self.facts,
        )

    def failed_plan(self) -> ParallelPlan | None:
        failures = self.job.status.out_of_memory if self.job.status else ()
        return self.plans.get(failures[-1].plan_hash) if failures else None

    @property
    def status(self) -> TrainingJobStatus:
        assert self.job.status is not None
        return self.job.status

    def condition(self, kind: ConditionType) -> Condition:
        return next(c for c in self.status.conditions if c.type == kind)

    def reason(self, kind: ConditionType = ConditionType.READY) -> str:
        return self.condition(kind).reason

    def holds(self, kind: ConditionType) -> bool:
        return self.condition(kind).status == "True"

    def edit(self, **spec: Any) -> None:
        """The user changes the spec."""
        meta = self.job.metadata.replace(generation=self.job.metadata.generation + 1)
        self.job = self.job.model_copy(update={"spec": self.job.spec.replace(**spec), "metadata": meta})

    def pass_time(self, seconds: float, *, beat: bool = True) -> None:
        self.now += timedelta(seconds=seconds)
        if beat:
            self.agents = {i: a.replace(seen_at=self.now) for i, a in self.agents.items()}

    def pod(self, index: int) -> PodFact:
        return next(p for p in self.pods.values() if p.index == index and p.incarnation == self.status.incarnation)

    def change_pod(self, index: int, **changes: Any) -> None:
        pod = self.pod(index)
        self.pods[pod.name] = pod.replace(**changes)

    def lose_pod(self, index: int) -> None:
        del self.pods[self.pod(index).name]

    def start_pods(self) -> None:
        for pod in list(self.pods.values()):
            if not pod.deleting:
                self.pods[pod.name] = pod.replace(phase="Running", ready=True)

    def beat(
        self,
        step: int = 0,
        state: RankState = RankState.RUNNING,
        *,
        only: Iterable[int] | None = None,
        exits: dict[int, int] | None = None,
        total: int | None = None,
        **report: Any,
    ) -> None:
        """Agents of the given pods report all their ranks; `exits` gives exit codes of ranks."""
        per_pod = self.job.spec.devices.per_pod
        size = self.job.spec.devices.count // per_pod
        for index in range(size) if only is None else only:
            ranks = tuple(
                self._rank(r, step, state, (exits or {}).get(r), report, total)
                for r in range(index * per_pod, (index + 1) * per_pod)
            )
            join = JoinRequest(
                attempt=self.status.attempt,
                incarnation=self.status.incarnation,
                pod_index=index,
                pod=self.pod(index).name,
                host="h",
            )
            ended = any(r.state is RankState.EXITED for r in ranks)
            self.agents[index] = AgentFact(
                heartbeat=HeartbeatRequest(join=join, ranks=ranks),
                seen_at=self.now,
                first_exit_at=self.now if ended else None,
            )

    @staticmethod
    def _rank(
        rank: int, step: int, state: RankState, code: int | None, extra: dict[str, Any], total: int | None
    ) -> RankReport:
        section = extra.get("section", "init")
        known = RankReport(rank=rank, step=step, total_steps=total, state=state, section=section)
        return known if code is None else known.replace(state=RankState.EXITED, exit_code=code, **extra if code else {})

    # ---- the shell

    def decide(self) -> Decision:
        return decide(self.snapshot())

    def turn(self) -> Decision:
        """One turn of the shell's loop."""
        decision = self.decide()
        if decision.status is not None:
            self.job = self.job.model_copy(update={"status": decision.status})
            self.writes += 1
        for action in decision.actions:
            self.log.append(action)
            self._do(action)
        return decision

    def settle(self) -> Decision:
        """Turn until nothing is left to do; the last decision."""
        decision = self.turn()
        for _ in range(12):
            if decision.status is None and not decision.actions:
                return decision
            decision = self.turn()
        raise AssertionError(f"does not settle: {decision}")

    def run(self, step: int = 1) -> "World":
        """Bring the job to Running."""
        self.settle()
        self.start_pods()
        self.settle()
        self.beat(step)
        self.settle()
        return self

    def bury(self) -> None:
        """Terminating pods are gone."""
        self.pods = {n: p for n, p in self.pods.items() if not p.deleting}

    def actions(self, kind: type) -> list[Any]:
        return [a for a in self.log if isinstance(a, kind)]

    def _do(self, action: Any) -> None:
        match action:
            case Plan(request=request):
                answer = (
                    PlanOutcome(infeasible=self.infeasible) if self.infeasible else PlanOutcome(plan=make_plan(request))
                )
                self.facts |= {"outcome": answer, "outcome_digest": request.content_hash()}
            case Replan(request=request):
                answer = PlanOutcome(infeasible=self.infeasible)
                if self.infeasible is None:
                    answer = PlanOutcome(plan=smaller_plan(request))
                self.facts |= {"outcome": answer, "outcome_digest": request.content_hash()}
            case RecordPlan(plan=plan):
                self.plan = plan
                self.plans[plan.hash] = plan
            case Launch():
                self._launch(action)
            case RenewTokens():
                self.facts["tokens_minted_at"] = self.now
            case Stop():
                self._stop(action)
            case Reclaim():
                self.facts |= {"reclaimed": True, "launched": None}
                self._stop(Stop(incarnation=10_000, reason=Reason.SUSPENDED))
            case Assess():
                self.assessed.append(action)
                verdict = self.verdict or assess(action.report, self.job)
                self.facts |= {"verdict": verdict, "verdict_attempt": action.report.attempt}
            case DeleteJob():
                self.deleted = True
            case Emit():
                pass

    def _launch(self, action: Launch) -> None:
        self.facts |= {
            "launched": (action.attempt, action.incarnation),
            "reclaimed": False,
            "tokens_minted_at": self.now,
        }
        for share in self.status.allocation:
            for index in from_ranges(share.pods):
                name = names.pod_name(self.job.metadata.name, self.job.metadata.uid, action.incarnation, index)
                self.pods.setdefault(
                    name,
                    PodFact(
                        name=name, index=index, incarnation=action.incarnation, attempt=action.attempt, node=share.node
                    ),
                )

    def _stop(self, action: Stop) -> None:
        self.facts["stop_done"] = StopDone(stop=action, at=self.now)
        for pod in list(self.pods.values()):
            if pod.owned and pod.incarnation <= action.incarnation:
                if self.linger and pod.name not in (*action.force, *action.overdue):
                    self.pods[pod.name] = pod.replace(deleting=True, ready=False)
                else:
                    del self.pods[pod.name]

    def claim(self) -> Claim | None:
        return claim(self.job, self.pods.values())
