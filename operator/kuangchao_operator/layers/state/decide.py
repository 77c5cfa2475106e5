"""What to do about a fault: one table from reasons to recoveries, and the limits on repeating them. Pure.

Mildest cure first, within the user's budget: same pods, new pods, suspend, fail. Faults of the platform do not use the
budget; but nothing restarts for ever without gaining a step. A plan that did not fit is replaced, and not by itself.
"""

import re
from dataclasses import dataclass
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import (
    MAX_MEMORY_FAILURES,
    Failure,
    HangAction,
    RestartLimitAction,
    TrainingJobStatus,
)
from kuangchao_contracts.faults import FaultDecision, FaultReport, Recovery
from kuangchao_contracts.reasons import INFRASTRUCTURE, Reason
from kuangchao_contracts.units import human_bytes

MAX_IDLE_RESTARTS: Final = 20
"""Restarts in a row, charged or not, after which a job that gained no step is stopped."""
SUSPECT: Final = frozenset({Reason.NODE_LOST, Reason.AGENT_LOST})
"""Faults after which the node of the failed pod is avoided; a plain crash says nothing against its node."""
RECOVERY: Final[dict[Reason, Recovery]] = {
    Reason.USER_ERROR: Recovery.RESTART_RANKS,
    Reason.RANK_EXITED: Recovery.RESTART_RANKS,
    Reason.EARLY_EXIT: Recovery.RESTART_RANKS,
    Reason.OUT_OF_MEMORY: Recovery.RESTART_RANKS,
    Reason.HUNG: Recovery.RESTART_RANKS,
    Reason.AUDIT_UNAVAILABLE: Recovery.RESTART_RANKS,
    Reason.AGENT_LOST: Recovery.NEW_PODS,
    Reason.POD_LOST: Recovery.NEW_PODS,
    Reason.NODE_LOST: Recovery.NEW_PODS,
    Reason.EVICTED: Recovery.NEW_PODS,
    # new pods mount the volume anew, and take longer than a volume that is away for a moment
    Reason.STORAGE: Recovery.NEW_PODS,
    Reason.START_DEADLINE_EXCEEDED: Recovery.NEW_PODS,
    Reason.IMAGE_PULL: Recovery.NEW_PODS,
    Reason.TASK_NOT_FOUND: Recovery.FAIL,
    Reason.INVALID_SPEC: Recovery.FAIL,
    Reason.CHECKPOINT_CORRUPT: Recovery.FAIL,
    Reason.CHECKPOINT_PATH_IN_USE: Recovery.FAIL,
    Reason.CHILD_CREATION_FAILED: Recovery.FAIL,
}
ADVICE: Final = {
    Reason.OUT_OF_MEMORY: "reduce training.globalBatch or model size, allow recomputation, or use more devices",
    Reason.TASK_NOT_FOUND: "spec.task must name module:function inside the image",
    Reason.CHECKPOINT_CORRUPT: "no committed checkpoint can be read; the job does not start from step 0 by itself",
}
START: Final = frozenset({Reason.START_DEADLINE_EXCEEDED, Reason.IMAGE_PULL})
"""Faults of a start: fatal for a job that never ran, since nothing says that a second try goes better."""
TWICE: Final = frozenset({Reason.USER_ERROR, Reason.OUT_OF_MEMORY})
"""Faults that end the job when they happen twice in a row in the same way at the same step."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class _Case:
    """A report with what the rules ask of the job."""

    report: FaultReport
    job: TrainingJob
    status: TrainingJobStatus

    @property
    def first(self) -> Failure:
        return self.report.failures[0]

    @property
    def cause(self) -> str:
        """The cause in words: where, at which step, what."""
        rank = f"rank {self.first.rank} " if self.first.rank is not None else ""
        where = f"on {self.first.node} " if self.first.node else ""
        return f"{rank}{where}at step {self.first.step or 0}: {self.first.message or self.report.reason}"


def assess(report: FaultReport, job: TrainingJob) -> FaultDecision:
    """The verdict on one incident. Counts once however many ranks failed in it."""
    case = _Case(report, job, job.status or TrainingJobStatus())
    return _did_not_fit(case) or _fatal(case) or _exhausted(case) or _restart(case)


def _did_not_fit(case: _Case) -> FaultDecision | None:
    """A measured peak: the same plan would need the same memory again, so another one is needed, or there is no cure.

    A plan is the planner's mistake and not the user's, so replacing it uses no budget. Without a figure there is
    nothing to plan with: a node that was short of memory for a moment looks like this too.
    """
    peak = case.report.measured_peak_bytes
    if case.report.reason is not Reason.OUT_OF_MEMORY or peak is None:
        return None
    text = _figures(case, peak)
    if case.job.spec.task is None:
        text = f"{text}, and a command is not planned again"
        return _verdict(case, Recovery.FAIL, case.report.reason, f"{text}; {case.cause}")
    if len(case.status.out_of_memory) >= MAX_MEMORY_FAILURES:
        text = f"{text}, after {MAX_MEMORY_FAILURES} plans that did not fit either"
        return _verdict(case, Recovery.FAIL, case.report.reason, f"{text}; {case.cause}")
    verdict = _verdict(case, Recovery.REPLAN, case.report.reason, f"{text}; {case.cause}")
    return verdict.replace(measured_peak_bytes=peak)


def _figures(case: _Case, peak: int) -> str:
    """Measured, estimated, allowed; where in a step. In front of the cause, whose words may be long."""
    guess, limit = case.report.estimated_peak_bytes, case.first.memory_limit_bytes
    estimated = "nothing was" if guess is None else f"{human_bytes(guess)} were"
    allowed = f", limit {human_bytes(limit)}" if limit is not None else ""
    where = f" (section {case.first.section})" if case.first.section else ""
    return f"measured peak {human_bytes(peak)} where {estimated} estimated{allowed}{where}"


def _fatal(case: _Case) -> FaultDecision | None:
    """Faults that no restart cures."""
    reason, policy = case.report.reason, case.job.spec.fault
    never_ran = reason in START and case.status.start_time is None
    hung = reason is Reason.HUNG and policy.on_hang is HangAction.FAIL
    if RECOVERY[reason] is Recovery.FAIL or never_ran or hung:
        return _verdict(case, Recovery.FAIL, reason, case.cause)
    if reason in TWICE and _again(case):
        return _verdict(case, Recovery.FAIL, reason, f"twice in a row, {case.cause}")
    return None


def _again(case: _Case) -> bool:
    """Whether the attempt before ended in the same way: same reason, same words, same step."""
    last, now = case.status.last_failure, case.first
    if last is None or last.reason != now.reason or last.attempt != case.report.attempt - 1:
        return False
    same_words = case.report.reason is Reason.OUT_OF_MEMORY or _words(last) == _words(now)
    return same_words and last.step == now.step


def _words(failure: Failure) -> str:
    return _ADDRESS.sub("0x", failure.message)


def _exhausted(case: _Case) -> FaultDecision | None:
    """The user's budget, and the one that guards against restarts without progress."""
    policy = case.job.spec.fault
    charged = case.report.reason not in INFRASTRUCTURE
    if charged and case.status.restarts >= policy.max_restarts:
        text = f"fault.maxRestarts={policy.max_restarts} used up; "
    elif case.status.restarts_without_progress >= MAX_IDLE_RESTARTS and not _gained(case):
        text = f"{MAX_IDLE_RESTARTS} restarts in a row without a new step; "
    else:
        return None
    recovery = Recovery.FAIL if policy.on_restart_limit is RestartLimitAction.FAIL else Recovery.SUSPEND
    return _verdict(case, recovery, Reason.RESTART_LIMIT_EXCEEDED, text + case.cause)


def _gained(case: _Case) -> bool:
    last = case.status.last_failure
    return last is None or (case.first.step or 0) > (last.step or 0)


def _restart(case: _Case) -> FaultDecision:
    recovery = RECOVERY[case.report.reason]
    if recovery is Recovery.RESTART_RANKS and not case.report.pods_alive:
        recovery = Recovery.NEW_PODS
    return _verdict(case, recovery, case.report.reason, case.cause)


def _verdict(case: _Case, recovery: Recovery, reason: Reason, message: str) -> FaultDecision:
    advice = ADVICE.get(case.report.reason)
    text = f"{message}; {advice}" if advice and recovery in (Recovery.FAIL, Recovery.SUSPEND) else message
    restarts = recovery in (Recovery.RESTART_RANKS, Recovery.NEW_PODS)  # only these use the budget
    suspects = {f.node for f in case.report.failures if f.node and Reason(f.reason) in SUSPECT}
    avoid = sorted(suspects | set(case.report.nodes_lost))[:64] if recovery is Recovery.NEW_PODS else []
    return FaultDecision(
        recovery=recovery,
        reason=reason,
        message=text[:1024],
        charged=restarts and case.report.reason not in INFRASTRUCTURE,
        avoid_nodes=tuple(avoid),
    )
