"""Carries out the actions of a decision, each through the gate under a token minted for it alone.

Decides nothing. What an action brings back is put into the job's memory, where the next decision finds it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import ConflictError
from kuangchao_contracts.faults import FaultDecision
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.plan import PlanOutcome
from kuangchao_contracts.ports.execution import LaunchRequest, StopRequest
from kuangchao_contracts.run import Empty
from kuangchao_operator.layers.execution.model import (
    Action,
    Assess,
    DeleteJob,
    Emit,
    Launch,
    Plan,
    Reclaim,
    RecordPlan,
    RenewTokens,
    Stop,
)
from kuangchao_operator.shell.memory import JobMemory
from kuangchao_operator.shell.ports import Authority, Effects

R = TypeVar("R", bound=Contract)


class Actions:
    """The hands of one job's loop."""

    def __init__(
        self, gate: Gate, authority: Authority, effects: Effects, memory: JobMemory, clock: Callable[[], datetime]
    ) -> None:
        self._gate, self._authority, self._effects = gate, authority, effects
        self._memory, self._clock = memory, clock

    async def run(self, job: TrainingJob, action: Action) -> None:
        """Carry out one action; raises what the layer or the API server raises."""
        match action:
            case Plan():
                self._memory.outcome = await self._call(job, "strategy.plan", action.request, PlanOutcome)
                self._memory.outcome_digest = action.request.content_hash()
            case Assess():
                self._memory.verdict = await self._call(job, "state.assess", action.report, FaultDecision)
                self._memory.verdict_attempt = action.report.attempt
            case RecordPlan():
                await self._effects.hold(job)
                await self._effects.record_plan(job, action.plan)
            case Launch():
                await self._launch(job, action)
            case RenewTokens():
                await self._effects.renew_tokens(job, action.attempt, action.incarnation)
                self._memory.tokens_minted_at = self._clock()
            case Stop():
                await self._stop(job, action)
            case Reclaim():
                await self.reclaim(job)
            case Emit():
                await self._effects.emit(job, action)
            case DeleteJob():
                await self._effects.delete_job(job)

    async def reclaim(self, job: TrainingJob) -> None:
        """Free everything that the job holds."""
        await self._gate_call(job, "execution.reclaim", Empty())
        self._memory.reclaimed = True

    async def _launch(self, job: TrainingJob, action: Launch) -> None:
        if job.status is None or job.status.plan_hash is None:
            raise ConflictError("the job has lost its plan")
        await self._effects.hold(job)
        request = LaunchRequest(attempt=action.attempt, incarnation=action.incarnation, plan_hash=job.status.plan_hash)
        minted = self._clock()
        await self._gate_call(job, "execution.launch", request)
        self._memory.launched = (action.attempt, action.incarnation)
        self._memory.tokens_minted_at = minted
        self._memory.accepted()

    async def _stop(self, job: TrainingJob, action: Stop) -> None:
        request = StopRequest(
            incarnation=action.incarnation, reason=action.reason, message=action.message, force=bool(action.force)
        )
        await self._gate_call(job, "execution.stop", request)

    async def _gate_call(self, job: TrainingJob, op: str, request: Contract) -> Contract:
        token = await self._authority.token(job, op)
        resource = names.job_resource(job.metadata.namespace or "", job.metadata.name)
        return await self._gate.call(token, op, resource, request)

    async def _call(self, job: TrainingJob, op: str, request: Contract, answer: type[R]) -> R:
        reply = await self._gate_call(job, op, request)
        if not isinstance(reply, answer):
            raise TypeError(f"{op} answered {type(reply).__name__}")
        return reply
