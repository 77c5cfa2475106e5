"""What a shell gives the job loop: facts to decide from, rights to act with, effects that no layer owns.

Implemented by the operator (kube) and by the local runner. Nothing here decides anything.
"""

from abc import ABC, abstractmethod
from typing import Protocol

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.layers.execution.model import Emit, JobSnapshot


class Facts(ABC):
    """Recorded facts of jobs."""

    @abstractmethod
    async def snapshot(self, namespace: str, name: str) -> JobSnapshot | None:
        """Everything known of a job now, without what the loop remembers itself; None when the job is gone."""

    @abstractmethod
    async def refresh(self, namespace: str, name: str) -> None:
        """Read the job anew from its store: a compare-and-swap has shown that the known one is old."""


class Effects(ABC):
    """Effects beside the gate: they keep records of decisions and start or stop nothing. All may be repeated."""

    @abstractmethod
    async def hold(self, job: TrainingJob) -> None:
        """Keep the job's object from vanishing while it has children."""

    @abstractmethod
    async def release(self, job: TrainingJob) -> None:
        """Undo `hold`; a job that is gone is success."""

    @abstractmethod
    def held(self, job: TrainingJob) -> bool:
        """Whether `hold` is in force as far as is known."""

    @abstractmethod
    async def record_plan(self, job: TrainingJob, plan: ParallelPlan) -> None:
        """Record the plan of an admitted job."""

    @abstractmethod
    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Mint the tokens of running pods anew and deliver them."""

    @abstractmethod
    async def emit(self, job: TrainingJob, event: Emit) -> None:
        """Tell users about a transition; failing to is no fault of the job."""

    @abstractmethod
    async def delete_job(self, job: TrainingJob) -> None:
        """Delete the job's object."""


class Authority(ABC):
    """Mints the control plane's own tokens."""

    @abstractmethod
    async def token(self, job: TrainingJob, op: str) -> str:
        """A token that lets execution call `op` on this job. Raises UnavailableError when the issuer is away."""


class Fencing(Protocol):
    """The part of the gate's fence that the loop keeps up to date."""

    def set(self, job_uid: str, attempt: int) -> None:
        """Only tokens of this attempt are good from now on."""

    def close(self, job_uid: str) -> None:
        """No token of this job is good any more."""
