"""What execution needs of a shell to carry out its port: something that makes and ends pods, and the recorded plan.

Implemented over the API server and over subprocesses. All methods are repeatable: names are fixed by job, incarnation
and index, so what exists already is success and what is gone already is too.
"""

from abc import ABC, abstractmethod

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.ports.execution import StopRequest


class Launcher(ABC):
    """Makes and ends the children of jobs."""

    @abstractmethod
    async def launch(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Tokens of this attempt, Service and the pods of this incarnation that do not exist yet, on the nodes of
        `job.status.allocation`. Raises ChildRefusedError when the API server does not want one."""

    @abstractmethod
    async def stop(self, job: TrainingJob, request: StopRequest) -> None:
        """End pods and delete tokens of all incarnations up to the requested one. Does not wait for the pods."""

    @abstractmethod
    async def reclaim(self, job: TrainingJob) -> None:
        """End and delete everything that the job has, of any incarnation, also what a crash left behind."""

    @abstractmethod
    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Mint the tokens of this attempt anew and deliver them to running pods."""


class PlanSource(ABC):
    """Recorded plans."""

    @abstractmethod
    async def plan(self, job: TrainingJob) -> ParallelPlan | None:
        """The plan that `job.status.plan_hash` names; None when it is not recorded yet."""
