"""Carries out the actions of a decision, each through the gate under a token minted for it alone.

Decides nothing and remembers nothing: answers go back to the loop, which notes them for the next decision.
"""

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import ConflictError
from kuangchao_contracts.gate import Gate
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
    Replan,
    Stop,
)
from kuangchao_operator.shell.ports import Authority, Effects


class Actions:
    """The hands of all loops of a process."""

    def __init__(self, gate: Gate, authority: Authority, effects: Effects) -> None:
        self._gate, self._authority, self._effects = gate, authority, effects

    async def run(self, job: TrainingJob, action: Action) -> Contract | None:
        """Carry out one action and return the answer of the layer asked; raises what the layer or the shell raises."""
        match action:
            case Plan(request=request):
                return await self._call(job, "strategy.plan", request)
            case Replan(request=request):
                return await self._call(job, "strategy.replan", request)
            case Assess(report=report):
                return await self._call(job, "state.assess", report)
            case RecordPlan(plan=plan):
                await self._effects.hold(job)
                await self._effects.record_plan(job, plan)
            case Launch():
                return await self._launch(job, action)
            case RenewTokens():
                await self._effects.renew_tokens(job, action.attempt, action.incarnation)
            case Stop():
                return await self._call(job, "execution.stop", stop_request(action))
            case Reclaim():
                return await self._call(job, "execution.reclaim", Empty())
            case Emit():
                await self._effects.emit(job, action)
            case DeleteJob():
                await self._effects.delete_job(job)
        return None

    async def _launch(self, job: TrainingJob, action: Launch) -> Contract:
        if job.status is None or job.status.plan_hash is None:
            raise ConflictError("the job has lost its plan")
        await self._effects.hold(job)
        request = LaunchRequest(attempt=action.attempt, incarnation=action.incarnation, plan_hash=job.status.plan_hash)
        return await self._call(job, "execution.launch", request)

    async def _call(self, job: TrainingJob, op: str, request: Contract) -> Contract:
        token = await self._authority.token(job, op)
        resource = names.job_resource(job.metadata.namespace or "", job.metadata.name)
        return await self._gate.call(token, op, resource, request)


def stop_request(action: Stop) -> StopRequest:
    """The request of a Stop."""
    return StopRequest(
        incarnation=action.incarnation,
        reason=action.reason,
        message=action.message,
        force=bool(action.force),
        force_pods=action.force,
        overdue_pods=action.overdue,
        drain=action.drain,
    )
