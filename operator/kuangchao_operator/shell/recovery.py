"""What an operation came to that a dead process began, told from recorded facts when the next one comes up. Pure.

An intent without a result says that something may have been done. Launches, stops, reclaims and commits leave marks:
pods of an attempt, pods that are gone, an entry in the ledger. Never guesses: what leaves no mark stays `Interrupted`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.ranges import from_ranges
from kuangchao_operator.layers.execution.model import PodFact

RECOVERED: Final = "Recovered"
INTERRUPTED: Final = "Interrupted"
NO_MARK: Final = frozenset(
    {"strategy.plan", "strategy.replan", "state.assess", "state.restore_point", "execution.join"}
)
"""Operations that only answer, or keep something in memory: nothing of them outlives the process."""
_LAUNCH = re.compile(r"attempt (\d+) incarnation (\d+) ")
_STOP = re.compile(r"incarnation (\d+) ")
_COMMIT = re.compile(r"step (\d+) attempt (\d+) manifest ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class JobTruth:
    """What there is of a job."""

    job: TrainingJob
    pods: tuple[PodFact, ...]
    """Those that are the job's own."""
    service: bool
    """Whether its Service is there, which a reclaim deletes after pods and tokens."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`done` None: cannot be told."""

    done: bool | None
    why: str


def result(intent: AuditRecord, truth: JobTruth | None, now: datetime) -> AuditRecord:
    """The record that closes an intent. `truth` None: the job is gone, or the operation is about no job."""
    found = judge(intent, truth)
    detail = " -> ".join(filter(None, (intent.detail, found.why)))[:1024]
    return intent.replace(
        ts=now,
        stage=Stage.RESULT,
        decision=Decision.ALLOW if found.done else Decision.ERROR,
        reason=INTERRUPTED if found.done is None else RECOVERED,
        detail=detail,
    )


def judge(intent: AuditRecord, truth: JobTruth | None) -> Finding:
    """Whether what was intended is so."""
    if intent.op in NO_MARK:
        return Finding(False, "nothing of it outlived the process, and nobody got its answer")
    if intent.op not in PROBES:
        return Finding(None, "the process ended between intent and result; the outcome is not known")
    if truth is None:
        gone = intent.op in ("execution.stop", "execution.reclaim")
        return Finding(True if gone else None, "the job is gone, and what it held with it")
    return PROBES[intent.op](intent.detail, truth)


def _launched(detail: str, truth: JobTruth) -> Finding:
    """A launch labels a pod with the attempt after its tokens are written, so the label is the last that is done."""
    wanted = _LAUNCH.match(detail)
    placed = sum(len(from_ranges(share.pods)) for share in truth.job.status.allocation) if truth.job.status else 0
    if wanted is None or not placed:
        return Finding(None, "the job has no place any more, so its pods tell nothing")
    attempt, incarnation = map(int, wanted.groups())
    there = sum(pod.incarnation == incarnation and pod.attempt == attempt for pod in truth.pods)
    return Finding(there == placed, f"{there} of {placed} pods are of attempt {attempt}")


def _stopped(detail: str, truth: JobTruth) -> Finding:
    wanted = _STOP.match(detail)
    if wanted is None:
        return Finding(None, "the record does not say which pods")
    last = int(wanted[1])
    going = sum(pod.incarnation <= last and not pod.deleting for pod in truth.pods)
    return Finding(going == 0, f"{going} pods up to incarnation {last} were not told to end")


def _reclaimed(_: str, truth: JobTruth) -> Finding:
    going = sum(not pod.deleting for pod in truth.pods)
    service = "is there" if truth.service else "is gone"
    return Finding(not going and not truth.service, f"{going} pods were not told to end, the Service {service}")


def _committed(detail: str, truth: JobTruth) -> Finding:
    wanted = _COMMIT.match(detail)
    if wanted is None:
        return Finding(None, "the record does not say which checkpoint")
    step, attempt, digest = int(wanted[1]), int(wanted[2]), wanted[3]
    ledger = truth.job.status.checkpoints if truth.job.status else ()
    known = any((entry.step, entry.attempt, entry.digest) == (step, attempt, digest) for entry in ledger)
    return Finding(known, f"step {step} is {'' if known else 'not '}in the ledger")


PROBES: Final[dict[str, Callable[[str, JobTruth], Finding]]] = {
    "execution.launch": _launched,
    "execution.stop": _stopped,
    "execution.reclaim": _reclaimed,
    "state.commit_checkpoint": _committed,
}
