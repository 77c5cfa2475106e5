"""Where jobs and their status are recorded. Implemented by the API server and by the local runner."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus

Mutation = Callable[[TrainingJob], TrainingJobStatus]


class JobStore(ABC):
    """Reads jobs and writes status by compare-and-swap. Nothing else in the system writes a job's status."""

    @abstractmethod
    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        """The job as the store has it now (never a stale cache), or None."""

    @abstractmethod
    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        """Apply `mutate` to the current job and store the status if nobody wrote in between; else read and try again.

        `mutate` is pure and may run several times; when it returns an equal status nothing is written. Raises
        ConflictError when the job is gone or has another uid, and whatever `mutate` raises.
        """
