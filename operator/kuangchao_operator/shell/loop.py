"""The loop of one job: snapshot -> decide -> store the status by compare-and-swap -> act -> until nothing changes.

The only place that turns decisions into effects. It holds no policy of its own: what to do is `decide`'s business,
how to do it the ports'. It survives every error of its parts and never spins on one.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.errors import ConflictError, KuangchaoError, UnavailableError
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.execution.model import Action, Decision, Emit, JobSnapshot
from kuangchao_operator.shell.actions import Actions
from kuangchao_operator.shell.fencing import align, ended
from kuangchao_operator.shell.memory import JobMemory
from kuangchao_operator.shell.ports import Effects, Facts, Fencing

MAX_TURNS: Final = 32
"""Passes without a pause. A healthy job needs five at most; more means that decision and facts disagree."""
FIRST_DELAY: Final = 0.5
MAX_DELAY: Final = 60.0
DEBOUNCE: Final = 0.05
"""Events come in bursts (all pods of a gang at once): wait this long so that a burst costs one pass."""
logger = logging.getLogger(__name__)

Decide = Callable[[JobSnapshot], Decision]


@dataclass(frozen=True, slots=True)
class JobKey:
    """One job object; another object of the same name is another job."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LoopPorts:
    """Everything that all loops of a process share."""

    facts: Facts
    effects: Effects
    store: JobStore
    fence: Fencing
    admission: asyncio.Lock
    """Held from snapshot to stored status of whoever reserves: pools may share nodes, so one for all."""
    actions: Actions
    decide: Decide
    clock: Callable[[], datetime]
    rng: random.Random


@dataclass(frozen=True, slots=True)
class Turn:
    """What one pass came to: `again` at once, or after `wake` seconds, or (None) on the next event."""

    again: bool = False
    wake: float | None = None


class JobLoop:
    """Runs one job until it has ended and everything it held is free, or its object is gone."""

    def __init__(self, key: JobKey, ports: LoopPorts) -> None:
        self._key, self._ports = key, ports
        self._memory = JobMemory()
        self._event, self._urgent = asyncio.Event(), asyncio.Event()
        self._settled = False

    def wake(self, *, urgent: bool = False) -> None:
        """Something that concerns this job has changed. `urgent`: its owner did it, so no back-off may delay it."""
        if urgent:
            self._memory.forgive()
            self._urgent.set()
        self._event.set()

    def renew_tokens(self) -> None:
        """Have the workers' tokens minted anew at once: those that they hold were taken back."""
        self._memory.outdate_tokens(self._ports.clock())
        self.wake(urgent=True)

    async def run(self) -> None:
        """Run until settled. Cancellation is the only other way out."""
        failures, wake = 0, None
        while not self._settled:
            self._event.clear()
            self._urgent.clear()
            try:
                wake = await self._until_stable()
                failures = 0
            except Exception as error:  # noqa: BLE001 - a loop that dies leaves its job unattended for good
                self._complain("pass", error)
                failures += 1
            if failures:
                await self._wait(self._urgent, self._backoff(failures))
            elif not self._settled:
                await self._wait(self._event, wake)

    def _backoff(self, failures: int) -> float:
        longest: float = min(MAX_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 10))
        return longest * (0.5 + self._ports.rng.random() / 2)

    @staticmethod
    async def _wait(event: asyncio.Event, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
            await asyncio.sleep(DEBOUNCE)
        except TimeoutError:
            pass

    def _complain(self, what: str, error: Exception) -> None:
        known = isinstance(error, KuangchaoError | OSError | TimeoutError)
        where = f"{self._key.namespace}/{self._key.name}"
        text = f"{type(error).__name__}: {error}"
        level = logging.WARNING if known else logging.ERROR
        logger.log(level, "job %s: %s: %s", where, what, text, exc_info=None if known else error)

    async def _until_stable(self) -> float | None:
        """Turn until there is nothing to do now; returns when to look again (None: only on an event)."""
        for _ in range(MAX_TURNS):
            try:
                turn = await self._turn()
            except ConflictError:
                await self._ports.facts.refresh(self._key.namespace, self._key.name)
                continue
            if self._settled or not turn.again:
                return turn.wake
        raise UnavailableError(f"not stable after {MAX_TURNS} passes")

    async def _turn(self) -> Turn:
        seen = await self._look()
        if seen is None:
            self._ports.fence.close(self._key.uid)
            self._settled = True
            return Turn()
        snapshot, decision = seen
        if reserves(snapshot.job.status, decision.status):
            # another job may be reserving at this moment: look again when it is our turn
            async with self._ports.admission:
                seen = await self._look()
                if seen is None:
                    raise ConflictError("the job is gone")
                snapshot, decision = seen
                job = await self._store(snapshot, decision)
        else:
            job = await self._store(snapshot, decision)
        align(self._ports.fence, job)
        acted = await self._act(job, decision)
        if acted or decision.status is not None:
            return Turn(again=True)
        await self._let_go(job, decision)
        return Turn(wake=self._next_look(decision))

    async def _look(self) -> tuple[JobSnapshot, Decision] | None:
        """Facts as of now and what follows from them; None when the job is gone or another has its name."""
        snapshot = await self._ports.facts.snapshot(self._key.namespace, self._key.name)
        if snapshot is None or snapshot.job.metadata.uid != self._key.uid:
            return None
        # copied without validation: every value was validated when it was made
        snapshot = snapshot.model_copy(update=self._memory.facts())
        return snapshot, self._ports.decide(snapshot)

    async def _store(self, snapshot: JobSnapshot, decision: Decision) -> TrainingJob:
        if decision.status is None:
            return snapshot.job
        mutation = unless_changed(snapshot.job, decision.status)
        return await self._ports.store.update_status(self._key.namespace, self._key.name, self._key.uid, mutation)

    async def _act(self, job: TrainingJob, decision: Decision) -> bool:
        """Do what is due, in order. Behind an action that failed only events are still told. Returns: anything done."""
        acted = blocked = False
        for action in decision.actions:
            if isinstance(action, Emit):
                await self._try(job, action)
            elif not self._memory.due(action, self._ports.clock()):
                blocked = blocked or self._memory.failing(action)
            elif not blocked:
                acted = True
                blocked = not await self._try(job, action)
        return acted

    async def _try(self, job: TrainingJob, action: Action) -> bool:
        try:
            answer = await self._ports.actions.run(job, action)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the action is tried again later
            self._complain(action.kind, error)
            self._memory.failed(action, error, self._ports.clock())
            return False
        self._memory.done(action, answer, self._ports.clock())
        return True

    async def _let_go(self, job: TrainingJob, decision: Decision) -> None:
        """Let go of a job that has ended or is being deleted, once it holds nothing any more."""
        deleting = job.metadata.deletion_timestamp is not None
        if not decision.released or not (deleting or ended(job.status)):
            return
        if self._ports.effects.held(job):
            await self._ports.effects.release(job)
        self._settled = not deleting and decision.wake_after_seconds is None

    def _next_look(self, decision: Decision) -> float | None:
        held_back = self._memory.next_due(decision.actions, self._ports.clock())
        times = [t for t in (decision.wake_after_seconds, held_back) if t is not None]
        return min(times, default=None)


def reserves(old: TrainingJobStatus | None, new: TrainingJobStatus | None) -> bool:
    """Whether a status takes devices that the job does not hold yet."""
    return new is not None and bool(new.allocation) and (old is None or new.allocation != old.allocation)


def unless_changed(seen: TrainingJob, status: TrainingJobStatus) -> Mutation:
    """Store `status` only on the very job that it was decided for."""

    def mutate(current: TrainingJob) -> TrainingJobStatus:
        same = current.status == seen.status and current.spec == seen.spec
        if not same or current.metadata.deletion_timestamp != seen.metadata.deletion_timestamp:
            raise ConflictError("the job has changed since the decision")
        return status

    return mutate
