"""Effects of the job loop that no layer owns, on files and on whoever looks on."""

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_operator.layers.execution.model import Emit
from kuangchao_operator.local.facts import PlanRecord
from kuangchao_operator.local.launcher import LocalLauncher
from kuangchao_operator.local.rundir import RunDirectory
from kuangchao_operator.local.watcher import Watcher
from kuangchao_operator.shell.ports import Effects


class LocalEffects(Effects):
    """The job's record cannot vanish while the runner lives, so holding it is only remembered."""

    def __init__(self, run: RunDirectory, plan: PlanRecord, launcher: LocalLauncher, watcher: Watcher) -> None:
        self._run, self._plan, self._launcher, self._watcher = run, plan, launcher, watcher
        self._held = False

    def held(self, job: TrainingJob) -> bool:  # noqa: ARG002 - there is one job
        """Whether the job has or had children."""
        return self._held

    async def hold(self, job: TrainingJob) -> None:  # noqa: ARG002
        """Remember that there may be children."""
        self._held = True

    async def release(self, job: TrainingJob) -> None:  # noqa: ARG002
        """There are none any more."""
        self._held = False

    async def record_plan(self, job: TrainingJob, plan: ParallelPlan) -> None:
        """Keep the plan and write it beside the job."""
        self._plan.keep(plan)
        self._run.record("plan.json", {"job": job.metadata.name, "hash": plan.hash, "plan": plan.wire()})

    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Let the launcher replace the token files."""
        await self._launcher.renew_tokens(job, attempt, incarnation)

    async def emit(self, job: TrainingJob, event: Emit) -> None:  # noqa: ARG002
        """Tell the watcher."""
        line = f"{event.reason}: {event.message}" if event.message else event.reason
        self._watcher.note(line if event.type == "Normal" else f"{event.type.lower()}: {line}")

    async def delete_job(self, job: TrainingJob) -> None:
        """Never asked for: a local job has no time to live after its end."""
