"""Views on the facts of one job: its gang of pods and what their agents say. Pure, decides nothing."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pydantic import TypeAdapter, ValidationError

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.meta import ConditionStatus
from kuangchao_contracts.api.trainingjob import NodeShare, SuccessPolicy, TrainingJobStatus
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.reasons import ConditionType
from kuangchao_contracts.run import RankReport, RankState
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.model import AgentFact, Claim, JobSnapshot, PodFact, Waiting

MAX_NUMBER: Final = 2**53
_REPORTS = TypeAdapter(tuple[RankReport, ...])


@dataclass(frozen=True)
class Gang:
    """Pods of the current incarnation by index, what is left of older ones, and strangers that bear our names."""

    size: int
    per_pod: int
    attempt: int
    managed: bool
    pods: Mapping[int, PodFact]
    old: tuple[PodFact, ...]
    foreign: tuple[PodFact, ...]
    agents: Mapping[int, AgentFact]

    @cached_property
    def reports(self) -> dict[int, RankReport]:
        """The newest word on each rank of this attempt, by rank."""
        return {r.rank: r for index in range(self.size) for r in self.pod_reports(index)}

    def pod_reports(self, index: int) -> tuple[RankReport, ...]:
        """Reports of a pod's ranks: its last words when it has ended, its agent's newest heartbeat otherwise."""
        pod = self.pods.get(index)
        if pod is not None and pod.exit_code is not None:
            if not self.took_part(index):
                return ()  # they are about an earlier attempt
            own = range(index * self.per_pod, (index + 1) * self.per_pod)
            last = tuple(report for report in last_words(pod.termination_message) if report.rank in own)
            return last if pod.exit_code else self._all_well(index, last)
        return self._heard(index)

    def took_part(self, index: int) -> bool:
        """Whether the agent of a pod that has ended had joined this attempt: how it ended says nothing of another one.

        Agents that nobody has heard of since the operator came up had, unless others still wait for the gang.
        """
        agent = self.agents.get(index)
        if agent is not None:
            return agent.heartbeat.join.attempt >= self.attempt
        joined = (a.heartbeat for a in self.agents.values() if a.heartbeat.join.attempt == self.attempt)
        return all(heartbeat.ranks for heartbeat in joined)

    def missed(self, index: int) -> bool:
        """Whether a pod has ended with its ranks before its agent could join this attempt, and so never will."""
        pod = self.pods.get(index)
        if pod is None or pod.exit_code is None or self.took_part(index):
            return False
        return pod.exit_code == 0 or bool(last_words(pod.termination_message))

    def leaves(self, index: int) -> bool:
        """Whether all ranks of a pod have ended well in this attempt: its agent ends then, though it may be seen
        later, and joins nothing any more."""
        reports = self.pod_reports(index)
        return len(reports) == self.per_pod and all(map(ended_well, reports))

    def _all_well(self, index: int, last: tuple[RankReport, ...]) -> tuple[RankReport, ...]:
        """Reports of a pod that ended with 0: ranks for which the termination log had no room ended well too."""
        known = {r.rank: r for r in (*self._heard(index), *last) if r.state is RankState.EXITED}
        steps = {r.rank: r.step for r in self._heard(index)}
        first = index * self.per_pod
        return tuple(
            known.get(r) or RankReport(rank=r, state=RankState.EXITED, exit_code=0, step=steps.get(r, 0))
            for r in range(first, first + self.per_pod)
        )

    def _heard(self, index: int) -> tuple[RankReport, ...]:
        agent = self.agents.get(index)
        current = agent is not None and agent.heartbeat.join.attempt == self.attempt
        return agent.heartbeat.ranks if agent is not None and current else ()

    @property
    def ranks(self) -> int:
        """World size."""
        return self.size * self.per_pod

    @property
    def running(self) -> bool:
        """Whether every rank of this attempt has been seen past its start. Programs of `command` jobs say nothing of
        themselves, so there it is enough that their agents report them."""
        started = (r.state is not RankState.STARTING or not self.managed for r in self.reports.values())
        return len(self.reports) == self.ranks and all(started)

    def succeeded(self, policy: SuccessPolicy) -> bool:
        """Whether the ranks that the success policy asks for have ended with 0."""
        wanted = range(1) if policy is SuccessPolicy.RANK0 else range(self.ranks)
        return all(r in self.reports and ended_well(self.reports[r]) for r in wanted)

    @property
    def step(self) -> int:
        """Last step that is known to be completed: rank 0's word, else the furthest one's."""
        if 0 in self.reports:
            return self.reports[0].step
        return max((r.step for r in self.reports.values()), default=0)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run as rank 0's program says; 0: it does not."""
        return (self.reports[0].total_steps or 0) if 0 in self.reports else 0

    @property
    def ready(self) -> int:
        """Pods that are ready, or have done their work."""
        return sum(1 for p in self.pods.values() if (p.ready and not p.deleting) or p.exit_code == 0)


def gang(snapshot: JobSnapshot) -> Gang:
    """The job's gang as the facts show it."""
    status = snapshot.job.status or TrainingJobStatus()
    devices = snapshot.job.spec.devices
    size = devices.count // devices.per_pod
    if status.allocation:
        size = sum(s.devices for s in status.allocation) // devices.per_pod
    owned = [p for p in snapshot.pods if p.owned]
    current = {p.index: p for p in owned if p.incarnation == status.incarnation and p.index < size}
    agents = {
        a.heartbeat.join.pod_index: a for a in snapshot.agents if a.heartbeat.join.incarnation == status.incarnation
    }
    return Gang(
        size=size,
        per_pod=devices.per_pod,
        attempt=status.attempt,
        managed=snapshot.job.spec.task is not None,
        pods=current,
        old=tuple(p for p in owned if p is not current.get(p.index)),
        foreign=tuple(p for p in snapshot.pods if not p.owned and p.incarnation == status.incarnation),
        agents=agents,
    )


def catching_up(snapshot: JobSnapshot) -> float:
    """Seconds in which what was said while this process stood still is yet to be read; 0: it has been."""
    if snapshot.deaf_until is None:
        return 0.0
    return max(0.0, limits.AGENT_LOST - (snapshot.now - snapshot.deaf_until).total_seconds())


def ended_well(report: RankReport) -> bool:
    """Whether a rank ended with exit code 0."""
    return report.state is RankState.EXITED and report.exit_code == 0


def ended_badly(report: RankReport) -> bool:
    """Whether a rank ended in any other way."""
    return report.state is RankState.EXITED and report.exit_code != 0


def last_words(message: str) -> tuple[RankReport, ...]:
    """Rank reports that an agent left in the termination log; () for anything else that is written there.

    Any process of the pod may write it: whatever it says must leave the job decidable.
    """
    try:
        reports = _REPORTS.validate_python(json.loads(message)) if message.startswith("[") else ()
    except (ValueError, ValidationError, RecursionError):
        return ()
    return reports if all(map(storable, reports)) else ()


def storable(report: RankReport) -> bool:
    """Whether a status can hold its numbers: a write with others would fail, and with it all else about the job."""
    return max(report.step, report.total_steps or 0, abs(report.exit_code or 0)) <= MAX_NUMBER


def waiting(job: TrainingJob) -> Waiting | None:
    """The job as its pool's queue sees it; None when it does not wait for devices now."""
    status = job.status
    reserved = _condition(status, ConditionType.QUOTA_RESERVED)
    if status is None or job.spec.suspend or _over(job) or status.plan_hash is None or reserved is not False:
        return None
    if status.allocation or _condition(status, ConditionType.STALLED):
        return None
    return as_waiting(job)


def as_waiting(job: TrainingJob) -> Waiting:
    """The job's wish for devices."""
    meta, devices = job.metadata, job.spec.devices
    if meta.creation_timestamp is None:
        raise ValueError("a stored job has a creation time")
    return Waiting(
        namespace=meta.namespace or "",
        job=meta.name,
        uid=meta.uid,
        priority=job.spec.priority,
        created=meta.creation_timestamp,
        devices=devices.count,
        per_pod=devices.per_pod,
        avoid_nodes=job.status.avoid_nodes if job.status else (),
    )


def claim(job: TrainingJob, pods: Iterable[PodFact]) -> Claim | None:
    """What the job holds: its reservation, or what pods still use that outlived it. None: nothing.

    Devices count as used until the pods are gone from the API, not until some status says that the job is done.
    """
    shares = job.status.allocation if job.status else ()
    if not shares:
        by_node: dict[str, list[int]] = {}
        for pod in pods:
            if pod.owned and pod.node is not None:
                by_node.setdefault(pod.node, []).append(pod.index)
        per_pod = job.spec.devices.per_pod
        shares = tuple(
            NodeShare(node=node, devices=len(indices) * per_pod, pods=to_ranges(indices))
            for node, indices in sorted(by_node.items())
        )
    if not shares:
        return None
    return Claim(
        namespace=job.metadata.namespace or "", job=job.metadata.name, priority=job.spec.priority, shares=shares
    )


def _over(job: TrainingJob) -> bool:
    kinds = (ConditionType.COMPLETE, ConditionType.FAILED, ConditionType.SUSPENDED)
    return job.metadata.deletion_timestamp is not None or any(_condition(job.status, kind) for kind in kinds)


def _condition(status: TrainingJobStatus | None, kind: ConditionType) -> bool | None:
    for condition in status.conditions if status else ():
        if condition.type == kind:
            return condition.status is ConditionStatus.TRUE
    return None
