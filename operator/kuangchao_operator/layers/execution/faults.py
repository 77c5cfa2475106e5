"""Finds the faults of the current attempt in the facts and makes one report of them, the likely cause first. Pure.

One incident is one report: when a rank dies, its peers fail too, by lost connections; that is told apart here. What to
do about it is the state layer's decision.
"""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kuangchao_contracts.api.trainingjob import Failure, HangAction, SuccessPolicy, TrainingJobSpec, TrainingJobStatus
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.faults import FaultReport
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import DRAINED_EXIT, STOPPED, RankReport
from kuangchao_contracts.text import printable
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.facts import Gang, catching_up, ended_badly, ended_well
from kuangchao_operator.layers.execution.model import JobSnapshot, PodFact
from kuangchao_operator.layers.execution.replan import estimate
from kuangchao_operator.layers.execution.symptoms import classify, peer_loss, shared

STEPPING: Final = frozenset({"init", "train"})
"""Sections in which a script makes steps, or is about to; the name of any other is its own."""
EVALUATE: Final = "evaluate"
IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
NEVER_PULLED: Final = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_QUOTED: Final = re.compile(r'"[^"]*"')
"""Names of images in messages of kubelets: an image may be called anything."""
PULL_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
PULL_REFUSED: Final = re.compile(
    r"not ?found|manifest unknown|access.{0,60} denied|unauthorized|forbidden", re.IGNORECASE
)
"""What a registry that answers says of an image that it does not have or does not give."""
WEIGHT: Final = {
    reason: place
    for place, reason in enumerate(
        (
            Reason.NODE_LOST,
            Reason.EVICTED,
            Reason.POD_LOST,
            Reason.CHILD_CREATION_FAILED,
            Reason.OUT_OF_MEMORY,
            Reason.TASK_NOT_FOUND,
            Reason.INVALID_SPEC,
            Reason.CHECKPOINT_PATH_IN_USE,
            Reason.CHECKPOINT_CORRUPT,
            Reason.STORAGE,
            Reason.AUDIT_UNAVAILABLE,
            Reason.USER_ERROR,
            Reason.AGENT_LOST,
            Reason.RANK_EXITED,
            Reason.EARLY_EXIT,
            Reason.IMAGE_PULL,
            Reason.START_DEADLINE_EXCEEDED,
            Reason.HUNG,
        )
    )
}
"""Which of several faults of one incident is the cause: the platform first, then what a rank says of itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure, and whether it may be the mere consequence of another one that is not known yet.

    `shared`: of another one that has the same reason.
    """

    failure: Failure
    reason: Reason
    consequence: bool = False
    since: datetime | None = None
    shared: bool = False

    @property
    def order(self) -> tuple[bool, int, bool, int]:
        """Sort key: causes first."""
        return (self.consequence, WEIGHT[self.reason], self.shared, self.failure.rank or 0)


def gather(snapshot: JobSnapshot, gang: Gang, *, was_running: bool, pods_were_ready: bool) -> FaultReport | None:
    """The incident of the current attempt, or None when there is none, or its cause may still show up."""
    finder = _Finder(snapshot, gang, was_running, pods_were_ready)
    if catching_up(snapshot):
        return None
    faults = sorted(finder.all(), key=lambda f: f.order)
    if not faults:
        return None
    first = faults[0]
    waits = first.consequence or (first.shared and any(r.exit_code is None for r in gang.reports.values()))
    if waits and first.since is not None and finder.age(first.since) < limits.PEER_LOSS:
        return None
    lost = {p.node for p in gang.pods.values() if p.node and finder.node_lost(p)}
    return FaultReport(
        reason=first.reason,
        attempt=gang.attempt,
        failures=tuple(f.failure for f in faults[:64]),
        pods_alive=finder.pods_alive(),
        nodes_lost=tuple(sorted(lost))[:64],
        estimated_peak_bytes=estimate(snapshot.plan, device_kind(snapshot)),
    )


class _Finder:
    """One pass over the facts of one attempt."""

    def __init__(self, snapshot: JobSnapshot, gang: Gang, was_running: bool, pods_were_ready: bool) -> None:
        self._snapshot, self._gang, self._now = snapshot, gang, snapshot.now
        self._spec: TrainingJobSpec = snapshot.job.spec
        self._status = snapshot.job.status or TrainingJobStatus()
        self._was_running, self._pods_were_ready = was_running, pods_were_ready

    def all(self) -> Iterator[Fault]:
        """Every fault of the attempt."""
        for index in range(self._gang.size):
            yield from self._pod(index)
        yield from self._early_exit()
        yield from self._start()
        if not self._unheard():
            yield from self._hang()

    def age(self, since: datetime) -> float:
        """Seconds since a time."""
        return (self._now - since).total_seconds()

    def node_lost(self, pod: PodFact) -> bool:
        """Whether the pod's node has been gone for longer than the job's patience."""
        since = pod.node_lost_since
        return since is not None and self.age(since) >= self._spec.fault.node_lost_seconds

    def pods_alive(self) -> bool:
        """Whether every pod still runs with an agent that answers and stays."""
        for index in range(self._gang.size):
            pod = self._gang.pods.get(index)
            if (
                pod is None
                or pod.phase != "Running"
                or pod.deleting
                or pod.exit_code is not None
                or self._silent(index)
                or self._gang.leaves(index)
            ):
                return False
            if pod.node_lost_since is not None:
                return False
        return True

    def _pod(self, index: int) -> Iterator[Fault]:
        pod = self._gang.pods.get(index)
        if pod is None:
            if self._expected():
                yield self._fault(Reason.POD_LOST, f"pod {index} is gone", index)
            return
        if pod.exit_code == 0 and self._gang.took_part(index):
            yield from (self._rank(index, r) for r in self._gang.pod_reports(index) if ended_badly(r))
        elif self.node_lost(pod):
            yield self._fault(Reason.NODE_LOST, f"node {pod.node} does not answer", index)
        elif pod.disrupted or pod.exit_reason == "Evicted":
            yield self._fault(Reason.EVICTED, pod.exit_reason or "the pod was disrupted", index)
        elif pod.deleting:
            yield self._fault(Reason.POD_LOST, "the pod was deleted", index)
        else:
            yield from self._living(index, pod)

    def _living(self, index: int, pod: PodFact) -> Iterator[Fault]:
        bad = [r for r in self._gang.pod_reports(index) if ended_badly(r)]
        yield from (self._rank(index, r) for r in bad)
        if pod.exit_reason == "OOMKilled":
            yield self._over_limit(index, pod)
        elif self._gang.missed(index):
            text = f"the pod ended with exit code {pod.exit_code} before it joined attempt {self._gang.attempt}"
            yield self._fault(Reason.POD_LOST, text, index)
        elif (pod.exit_code or pod.phase == "Failed") and not bad:
            text = f"{pod.exit_reason or 'the pod failed'}, exit code {pod.exit_code}"
            reason = Reason.EVICTED if pod.exit_code == DRAINED_EXIT else Reason.RANK_EXITED
            yield self._fault(reason, text, index, code=pod.exit_code)
        elif pod.exit_code is None and self._silent(index) and not self._unheard():
            yield self._fault(Reason.AGENT_LOST, "the agent is silent", index)

    def _over_limit(self, index: int, pod: PodFact) -> Fault:
        """A container that was killed as a whole has no last words: each of its ranks needs more than its share."""
        limit = pod.memory_limit_bytes if self._counts_main_memory() else None
        share = limit // self._gang.per_pod if limit is not None else None
        fault = self._fault(Reason.OUT_OF_MEMORY, "the container went over its memory limit", index, code=pod.exit_code)
        known = fault.failure.replace(peak_memory_bytes=share, memory_limit_bytes=share)
        return Fault(known, fault.reason)

    def _counts_main_memory(self) -> bool:
        """Whether it is main memory that a plan counts: what the kernel kills for says nothing of a plan for GPUs."""
        return device_kind(self._snapshot) is DeviceKind.CPU

    def _expected(self) -> bool:
        """Whether a pod that is not seen must have existed."""
        launched = self._snapshot.launched == (self._status.attempt, self._status.incarnation)
        base = self._status.attempt_time or self._now
        return (
            self._pods_were_ready
            or self._was_running
            or (
                launched
                and self._snapshot.child_error is None
                and self.age(base) > limits.MISSING_POD
                and not self._gang.foreign
            )
        )

    def _silent(self, index: int) -> bool:
        if self.age(self._snapshot.operator_started_at) < limits.OPERATOR_GRACE:
            return False
        agent = self._gang.agents.get(index)
        if agent is None:
            return self._was_running and index in self._gang.pods
        begun = self._status.attempt_time
        if agent.heartbeat.join.attempt < self._gang.attempt and begun is not None:
            return self.age(max(agent.seen_at, begun)) > limits.REJOIN
        return self.age(agent.seen_at) > self._snapshot.silence_seconds

    def _unheard(self) -> bool:
        """Whether agents are refused because nobody could renew their leases, or have hardly got new ones since.

        Their silence says nothing then: ranks go on for a while, and what ended their training would be us.
        """
        minted, late = self._snapshot.tokens_minted_at, self._snapshot.tokens_late_at
        return (minted is not None and self.age(minted) >= limits.LEASES_OUT) or (
            late is not None and self.age(late) < limits.LEASES_DELIVERED
        )

    def _rank(self, index: int, report: RankReport) -> Fault:
        reason = classify(report)
        text = report.error or f"rank {report.rank} {ending(report.exit_code)}"
        consequence = reason is Reason.RANK_EXITED and peer_loss(report)
        fault = self._fault(reason, text, index, rank=report.rank, code=report.exit_code, step=report.step)
        failure = fault.failure
        if reason is Reason.OUT_OF_MEMORY:
            of_the_plan = report.exit_code != -signal.SIGKILL or self._counts_main_memory()
            failure = failure.replace(
                section=printable(report.section)[:32],
                peak_memory_bytes=report.peak_memory_bytes if of_the_plan else None,
                memory_limit_bytes=report.memory_limit_bytes if of_the_plan else None,
            )
        return Fault(failure, reason, consequence, self._first_exit(index), shared(report))

    def _first_exit(self, index: int) -> datetime | None:
        pod, agent = self._gang.pods.get(index), self._gang.agents.get(index)
        return (agent.first_exit_at if agent else None) or (pod.finished_at if pod else None)

    def _early_exit(self) -> Iterator[Fault]:
        reports = self._gang.reports
        done = [r for r in reports.values() if ended_well(r)]
        if self._spec.success_policy is SuccessPolicy.RANK0 or not done or len(done) == self._gang.ranks:
            return
        managed = self._spec.task is not None
        early = [r for r in done if r.step < self._spec.training.steps] if managed else done
        grace = limits.EARLY_EXIT if managed else limits.EARLY_EXIT_COMMAND
        for report in sorted(early, key=lambda r: r.rank):
            index = report.rank // self._gang.per_pod
            since = self._first_exit(index)
            if since is None or self.age(since) >= grace:
                text = f"rank {report.rank} ended with 0 while others still run; under AllRanks that is a failure"
                yield self._fault(Reason.EARLY_EXIT, text, index, rank=report.rank, code=0, step=report.step)

    def _start(self) -> Iterator[Fault]:
        if self._snapshot.child_error is not None and self._snapshot.child_error_final:
            yield self._fault(Reason.CHILD_CREATION_FAILED, self._snapshot.child_error)
        base = self._status.attempt_time
        if self._was_running or self._gang.running or base is None:
            return
        hopeless = self._image_hopeless(base)
        if hopeless is not None:
            pod = self._gang.pods[hopeless]
            yield self._fault(Reason.IMAGE_PULL, f"{pod.waiting_reason}: {pod.waiting_message}", hopeless)
        elif self.age(base) >= self._spec.start_deadline_seconds:
            reason, text = start_problem(self._snapshot, self._gang)
            message = f"not running {self._spec.start_deadline_seconds} s after the devices were reserved; {text}"
            yield self._fault(reason or Reason.START_DEADLINE_EXCEEDED, message, _stuck(self._gang))

    def _image_hopeless(self, base: datetime) -> int | None:
        """A pod whose image no patience brings: an impossible name at once, a registry's refusal after a while.

        A registry that does not answer may come back, so it has the whole start deadline; so has one that refuses an
        image with which the job has run before.
        """
        for index, pod in sorted(self._gang.pods.items()):
            if pod.waiting_reason in NEVER_PULLED:
                return index
            asked = self.age(pod.sandbox_at or base)
            if self._status.start_time is None and refused(pod) and asked >= limits.IMAGE_REFUSED:
                return index
        return None

    def _hang(self) -> Iterator[Fault]:
        policy = self._spec.fault
        if policy.on_hang is HangAction.OBSERVE or not self._was_running:
            return
        text = hang(self._snapshot, self._gang)
        if text:
            told = self._gang.reports.values()
            # of a script, only some ranks may report: the others are not slow
            slowest = min(
                (r for r in told if r.step or self._gang.managed or r.section == STOPPED),
                key=lambda r: (r.section != STOPPED, r.step, r.rank),
                default=None,
            )
            if slowest and slowest.section == STOPPED:
                stopped = f"the process of rank {slowest.rank} is stopped by a signal"
                text = f"{text}: {stopped}; it last told of step {slowest.step}"
            index = slowest.rank // self._gang.per_pod if slowest else None
            yield self._fault(Reason.HUNG, text, index, rank=slowest.rank if slowest else None)

    def _fault(
        self,
        reason: Reason,
        message: str,
        index: int | None = None,
        *,
        rank: int | None = None,
        code: int | None = None,
        step: int | None = None,
    ) -> Fault:
        pod = self._gang.pods.get(index) if index is not None else None
        progress = self._status.progress
        known = max(self._gang.step, progress.step if progress else 0)
        failure = Failure(
            reason=reason,
            message=printable(message)[:1024],
            pod=pod.name if pod else None,
            node=pod.node if pod else None,
            rank=rank,
            exit_code=code,
            attempt=self._status.attempt,
            step=known if step is None else step,
            time=self._now,
        )
        return Fault(failure, reason)


def device_kind(snapshot: JobSnapshot) -> DeviceKind:
    """What the job runs on."""
    given = snapshot.job.spec.devices.type
    return given or (snapshot.pool.spec.device_type if snapshot.pool is not None else DeviceKind.GPU)


def refused(pod: PodFact) -> bool:
    """Whether the registry has answered that it does not have, or does not give, the image."""
    said = _QUOTED.sub("", pod.waiting_message)
    return pod.waiting_reason in PULL_REASONS and PULL_REFUSED.search(said) is not None


def ending(exit_code: int | None) -> str:
    """How a rank process ended, in words; Python's exit codes of signals are negative."""
    if exit_code is not None and exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


def hang(snapshot: JobSnapshot, gang: Gang) -> str:
    """How long a running job has made no step, when that is too long; "" otherwise.

    A script is judged only if it has ever reported a step, and more patiently once it has reported its last one or says
    that it does something else: a last evaluation or an export has no steps. So is a task that evaluates.
    """
    status, policy = snapshot.job.status, snapshot.job.spec.fault
    if status is None or status.attempt_time is None or not gang.running:
        return ""
    progress, script = status.progress, snapshot.job.spec.task is None
    if script and progress is None:
        return ""
    if progress is not None and gang.step > progress.step:
        return ""  # what is stored may be as old as an outage of ours
    last = progress.updated_at if progress else None
    stepped = last is not None and last > status.attempt_time
    base = max(last if stepped and last else status.attempt_time, snapshot.deaf_until or status.attempt_time)
    after_last = script and progress is not None and 0 < progress.total_steps <= progress.step
    sections = {report.section for report in gang.reports.values()} - {STOPPED}
    resting = bool(sections - STEPPING) if script else EVALUATE in sections
    limit = policy.hang_seconds if stepped and not after_last and not resting else policy.first_step_seconds
    return f"no step completed for {limit} s" if (snapshot.now - base).total_seconds() >= limit else ""


def lease_overdue(gang: Gang) -> str:
    """Which pods of this attempt let ranks act on leases that nobody had renewed, and how long at most; "" for none."""
    told = {
        index: agent.heartbeat.lease_overdue_seconds
        for index, agent in gang.agents.items()
        if agent.heartbeat.join.attempt == gang.attempt and agent.heartbeat.lease_overdue_seconds
    }
    if not told:
        return ""
    return f"ranks of pods {to_ranges(told)} acted on leases that had expired, for up to {max(told.values())} s"


def start_problem(snapshot: JobSnapshot, gang: Gang) -> tuple[Reason | None, str]:
    """What keeps a gang from running now: a known reason if there is one, and words."""
    if snapshot.child_error is not None:
        return Reason.CHILD_CREATION_FAILED, snapshot.child_error
    if gang.foreign:
        return Reason.CHILD_CREATION_FAILED, f"pod {gang.foreign[0].name} exists but belongs to someone else"
    stuck = _stuck(gang)
    if stuck is None:
        heard = sum(1 for a in gang.agents.values() if a.heartbeat.join.attempt == gang.attempt)
        return None, f"{heard}/{gang.size} agents have joined"
    pod = gang.pods[stuck]
    why = pod.waiting_reason or "neither the scheduler nor its node has said why yet"
    text = f"pod {pod.name} {pod.phase}: {why} {pod.waiting_message}".strip()
    return (Reason.IMAGE_PULL if pod.waiting_reason in IMAGE_REASONS else None), text


def _stuck(gang: Gang) -> int | None:
    """Index of the pod to blame for a gang that does not start: one that cannot get its image, else one that waits."""
    late = [i for i, p in sorted(gang.pods.items()) if not p.ready and p.exit_code is None]
    image = [i for i in late if gang.pods[i].waiting_reason in IMAGE_REASONS]
    return next(iter(image or late), None)
