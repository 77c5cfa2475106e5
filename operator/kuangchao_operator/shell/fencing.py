"""Keeps the gate's fence equal to what the stored status says. The status is the truth, the fence a copy of it."""

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.meta import ConditionStatus
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.reasons import ConditionType
from kuangchao_operator.shell.ports import Fencing


def holds(status: TrainingJobStatus | None, kind: ConditionType) -> bool:
    """Whether a condition is True."""
    return status is not None and any(c.type == kind and c.status is ConditionStatus.TRUE for c in status.conditions)


def ended(status: TrainingJobStatus | None) -> bool:
    """Whether the job is Complete or Failed, for good."""
    return holds(status, ConditionType.COMPLETE) or holds(status, ConditionType.FAILED)


def align(fence: Fencing, job: TrainingJob) -> None:
    """Open the fence for the job's current attempt, or close it when nothing of the job may run."""
    status = job.status
    idle = status is None or status.attempt == 0 or ended(status) or holds(status, ConditionType.SUSPENDED)
    if status is None or idle or job.metadata.deletion_timestamp is not None:
        fence.close(job.metadata.uid)
    else:
        fence.set(job.metadata.uid, status.attempt)
