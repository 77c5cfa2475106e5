"""One local run from manifest to result: control plane up, the job's loop to its end, everything down again, always."""

import asyncio
import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.audit import AuditQuery, Decision, Stage
from kuangchao_contracts.reasons import ConditionType
from kuangchao_operator.audit.query import query
from kuangchao_operator.gate.frontdoor import FrontDoor
from kuangchao_operator.layers.execution.decide import decide
from kuangchao_operator.layers.execution.registry import AgentRegistry
from kuangchao_operator.layers.execution.service import ExecutionService
from kuangchao_operator.layers.state.service import StateService
from kuangchao_operator.layers.strategy.service import StrategyService
from kuangchao_operator.local.control import ControlPlane, ExecutionAuthority, control_plane, now
from kuangchao_operator.local.earlier import earlier_run
from kuangchao_operator.local.effects import LocalEffects
from kuangchao_operator.local.facts import LocalFacts, PlanRecord
from kuangchao_operator.local.forge import shared_forge
from kuangchao_operator.local.job import admit
from kuangchao_operator.local.launcher import LocalLauncher
from kuangchao_operator.local.pool import LocalPool, local_pool
from kuangchao_operator.local.processes import sweep
from kuangchao_operator.local.result import AuditSummary, RunResult
from kuangchao_operator.local.rundir import RunDirectory, open_run
from kuangchao_operator.local.store import LocalJobStore
from kuangchao_operator.local.watcher import Watcher
from kuangchao_operator.shell.actions import Actions
from kuangchao_operator.shell.fencing import ended, holds
from kuangchao_operator.shell.loop import JobKey, JobLoop, LoopPorts

INTERRUPT_SECONDS: Final = 90.0
"""How long an interrupted job may take to save and end before its processes are killed. Who will not wait so long for a
busy machine interrupts it once more."""
LOOK_SECONDS: Final = 1.0
"""How often progress is looked at: a terminal is livelier than an API server needs to be."""
log = logging.getLogger(__name__)


def run_job(manifest: TrainingJob, workdir: Path, watcher: Watcher, resume: Path | None = None) -> RunResult:
    """Run a job to its end, from the newest checkpoint of the run in `resume` where that is given.

    Raises InvalidInputError and UnavailableError when it cannot even begin.
    """
    earlier = earlier_run(resume, manifest) if resume is not None else None
    job, notes = admit(manifest, now(), earlier)
    pool = local_pool(job)
    run = open_run(workdir, job.metadata.name, now())
    try:
        if earlier is not None:
            earlier.bring(run.checkpoints)
        with logging_to(run.root / "runner.log"):
            for note in (*notes, *pool.notes):
                watcher.note(f"note: {note}")
            return asyncio.run(_run(job, pool, run, watcher))
    finally:
        sweep(run.root)
        run.close()


async def _run(job: TrainingJob, pool: LocalPool, run: RunDirectory, watcher: Watcher) -> RunResult:
    async with AsyncExitStack() as stack:
        # first of all: it imports torch while everything else starts
        forge = await shared_forge(job, pool.spec.device_type, run, stack)
        plane = await stack.enter_async_context(control_plane(run))
        session = Session(job, pool, run, plane, forge, watcher)
        try:
            await session.run()
        finally:
            await session.close()
    return result(session.store.current, run, interrupted=session.interrupted)


class Session:
    """The job's loop with its ports, and the signals that end it early."""

    def __init__(
        self,
        job: TrainingJob,
        pool: LocalPool,
        run: RunDirectory,
        plane: ControlPlane,
        forge: Path | None,
        watcher: Watcher,
    ) -> None:
        self._run, self._watcher, self._plane = run, watcher, plane
        self.interrupted = False
        self._over, self._kill = asyncio.Event(), asyncio.Event()
        self.store = LocalJobStore(job, self._written)
        registry = AgentRegistry(now, lambda _: self._wake())
        plans = PlanRecord()
        self._launcher = LocalLauncher(run, plane.tokens, plane.gate_url, pool.spec.device_type, forge, self._wake, now)
        effects = LocalEffects(run, plans, self._launcher, watcher)
        for service in (
            StrategyService(),
            StateService(self.store, now),
            ExecutionService(self.store, plans, self._launcher, registry, plane.sink),
            FrontDoor(plane.issuer, plane.fence, time.time, plane.trust.jwks),
        ):
            plane.gate.register(service)
        self._facts = LocalFacts(self.store, pool, plans, self._launcher, registry, now)
        ports = LoopPorts(
            facts=self._facts,
            effects=effects,
            store=self.store,
            fence=plane.fence,
            admission=asyncio.Lock(),
            actions=Actions(plane.gate, ExecutionAuthority(plane.tokens), effects),
            decide=decide,
            clock=now,
            rng=random.Random(),
        )
        self._loop = JobLoop(JobKey(job.metadata.namespace or "", job.metadata.name, job.metadata.uid), ports)
        self._written(job)

    async def run(self) -> None:
        """Run until the job has ended, can never start, or a person has ended it."""
        events = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            events.add_signal_handler(number, self._interrupt)
        loop = asyncio.create_task(self._loop.run(), name="job loop")
        duties = [asyncio.create_task(duty) for duty in (self._tick(), self._facts.hearing.keep())]
        endings = [loop, *(asyncio.create_task(event.wait()) for event in (self._over, self._kill))]
        try:
            await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*endings, *duties):
                task.cancel()
            await asyncio.gather(*endings, *duties, return_exceptions=True)
            for number in (signal.SIGINT, signal.SIGTERM):
                events.remove_signal_handler(number)

    async def close(self) -> None:
        """End whatever still runs."""
        await self._launcher.close()

    def _interrupt(self) -> None:
        """First: suspend the job as a person would, so that it saves and ends in order. Second: kill."""
        if self.interrupted:
            self._kill.set()
            return
        self.interrupted = True
        self._watcher.note("ending the run; once more to kill it")
        self.store.suspend()
        self._loop.wake(urgent=True)
        asyncio.get_running_loop().call_later(INTERRUPT_SECONDS, self._kill.set)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._wake()

    def _wake(self) -> None:
        self._loop.wake()

    def _written(self, job: TrainingJob) -> None:
        self._run.record("status.json", job.wire())
        self._watcher.update(job)
        if stopped(job):
            self._over.set()


def stopped(job: TrainingJob) -> bool:
    """Whether a job that has not ended will never go on here, and holds nothing: refused, or suspended."""
    status = job.status
    if status is None or status.allocation or ended(status):
        return False
    return holds(status, ConditionType.STALLED) or holds(status, ConditionType.SUSPENDED)


def result(job: TrainingJob, run: RunDirectory, *, interrupted: bool) -> RunResult:
    """The end of a run as a value."""
    status = job.status
    assert status is not None, "the first decision writes a status"
    ready = next(c for c in status.conditions if c.type == ConditionType.READY)
    return RunResult(
        job=job.metadata.name,
        phase=status.phase,
        reason=ready.reason,
        message=ready.message,
        plan=status.plan_summary,
        attempts=status.attempt,
        restarts=status.restarts + status.infrastructure_restarts,
        steps=status.progress.step if status.progress else 0,
        metrics=dict(status.progress.metrics) if status.progress else {},
        failure=status.first_failure,
        checkpoints=status.checkpoints,
        audit=audit_summary(run.audit),
        directory=str(run.root),
        interrupted=interrupted,
    )


def audit_summary(directory: Path) -> AuditSummary:
    """Counts over the whole audit store of a run."""
    records = denied = 0
    operations: Counter[str] = Counter()
    after: int | None = 0
    while after is not None:
        page = query(directory, AuditQuery(limit=10_000, after=after))
        for record in (item.record for item in page.records):
            records += 1
            denied += record.count if record.decision is Decision.DENY else 0
            if record.stage in (Stage.RESULT, Stage.READ) and record.decision is Decision.ALLOW:
                operations[record.op] += record.count
        after = page.next_after
    return AuditSummary(records=records, denied=denied, operations=dict(sorted(operations.items())))


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the log of all parts to a file: the terminal belongs to the watcher."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
