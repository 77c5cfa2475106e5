"""State's port in the control plane: reads the recorded job, decides purely, writes the ledger by compare-and-swap.

Starts and stops nothing, touches no links and no plan: the verdict goes back to execution, which acts on it.
"""

from collections.abc import Callable
from datetime import datetime

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import ConflictError, StaleEpochError
from kuangchao_contracts.faults import FaultDecision, FaultReport
from kuangchao_contracts.ports.state import StateControl
from kuangchao_contracts.run import CommitReply, CommitRequest, RestorePointReply, RestorePointRequest
from kuangchao_operator.facts.store import JobStore
from kuangchao_operator.layers.state import decide, ledger


class StateService(StateControl):
    """Fault decisions and the commit ledger."""

    def __init__(self, store: JobStore, clock: Callable[[], datetime]) -> None:
        self._store, self._clock = store, clock

    async def assess(self, capability: Capability, request: FaultReport) -> FaultDecision:
        """The verdict on a fault of the current attempt. Raises ConflictError for a report on any other attempt."""
        job = await self._job(capability)
        current = job.status.attempt if job.status else 0
        if request.attempt != current:
            raise ConflictError(f"the report is about attempt {request.attempt}, the current one is {current}")
        return decide.assess(request, job)

    async def commit_checkpoint(self, capability: Capability, request: CommitRequest) -> CommitReply:
        """Enter a checkpoint in the ledger, unless the attempt has changed by the time of the write."""
        claims, now = capability.claims, self._clock()
        replies: list[CommitReply] = []

        def enter(job: TrainingJob) -> TrainingJobStatus:
            status, reply = ledger.commit(job, request, claims.att, now)
            replies.append(reply)
            return status

        await self._store.update_status(claims.ns, claims.job, claims.juid, enter)
        return replies[-1]

    async def restore_point(self, capability: Capability, request: RestorePointRequest) -> RestorePointReply:
        """The newest committed checkpoint that the caller has not found damaged."""
        job = await self._job(capability)
        if job.status is None or request.attempt != job.status.attempt:
            raise StaleEpochError("the attempt is over")
        return RestorePointReply(checkpoint=ledger.restore_point(job.status, request.damaged))

    async def _job(self, capability: Capability) -> TrainingJob:
        claims = capability.claims
        job = await self._store.get(claims.ns, claims.job)
        if job is None or job.metadata.uid != claims.juid:
            raise ConflictError(f"job {claims.ns}/{claims.job} is gone")
        return job
