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
from kuangchao_contracts.errors import ChildRefusedError, ConflictError, KuangchaoError, UnavailableError
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.execution.model import Decision, JobSnapshot
from kuangchao_operator.shell.actions import Actions
from kuangchao_operator.shell.fencing import align, ended
from kuangchao_operator.shell.locks import PoolLocks
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
    locks: PoolLocks
    decide: Decide
    clock: Callable[[], datetime]
    rng: random.Random


class JobLoop:
    """Runs one job until it has ended and everything it held is free, or its object is gone."""

    def __init__(self, key: JobKey, ports: LoopPorts, actions: Actions, memory: JobMemory) -> None:
        self._key, self._ports, self._actions, self._memory = key, ports, actions, memory
        self._event, self._urgent = asyncio.Event(), asyncio.Event()
        self._settled = False

    def wake(self, *, urgent: bool = False) -> None:
        """Something that concerns this job has changed. `urgent`: its owner did it, so no back-off may delay it."""
        self._event.set()
        if urgent:
            self._urgent.set()

    async def run(self) -> None:
        """Run until settled. Cancellation is the only other way out."""
        failures, after = 0, None
        while not self._settled:
            self._event.clear()
            self._urgent.clear()
            try:
                after = await self._until_stable()
                failures = 0
            except ChildRefusedError as error:
                await self._refused(error)
                failures += 1
            except Exception as error:  # noqa: BLE001 - a loop that dies leaves its job unattended for good
                self._complain(error)
                failures += 1
            if failures:
                await self._wait(self._urgent, self._backoff(failures))
            elif not self._settled:
                await self._wait(self._event, after)

    def _backoff(self, failures: int) -> float:
        longest: float = min(MAX_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 10))
        return longest * (0.5 + self._ports.rng.random() / 2)

    def _complain(self, error: Exception) -> None:
        known = isinstance(error, KuangchaoError | OSError | TimeoutError)
        logger.log(
            logging.WARNING if known else logging.ERROR,
            "job %s/%s: %s: %s", self._key.namespace, self._key.name, type(error).__name__, error,
            exc_info=None if known else error,
        )

    async def _refused(self, error: ChildRefusedError) -> None:
        """Say so on the job before trying again: the next decision sees the refusal, its actions wait."""
        self._memory.refused(str(error), final=error.final)
        try:
            await self._turn(act=False)
        except (KuangchaoError, OSError, TimeoutError) as second:
            self._complain(second)

    @staticmethod
    async def _wait(event: asyncio.Event, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
            await asyncio.sleep(DEBOUNCE)
        except TimeoutError:
            pass

    async def _until_stable(self) -> float | None:
        """Turn until there is nothing to do now; returns when to look again (None: only on an event)."""
        for _ in range(MAX_TURNS):
            try:
                decision = await self._turn()
            except ConflictError:
                await self._ports.facts.refresh(self._key.namespace, self._key.name)
                continue
            if self._settled or decision is None or (decision.status is None and not decision.actions):
                return decision.wake_after_seconds if decision else None
        raise UnavailableError(f"not stable after {MAX_TURNS} passes")

    async def _turn(self, *, act: bool = True) -> Decision | None:
        seen = await self._look()
        if seen is None:
            self._ports.fence.close(self._key.uid)
            self._settled = True
            return None
        snapshot, decision = seen
        if snapshot.job.metadata.deletion_timestamp is not None:
            await self._bury(snapshot.job)
            return None
        if reserves(snapshot.job.status, decision.status):
            # another job of the pool may be reserving at this moment: look again when it is our turn
            async with self._ports.locks.of(snapshot.job.spec.pool):
                seen = await self._look()
                if seen is None:
                    raise ConflictError("the job is gone")
                snapshot, decision = seen
                job = await self._store(snapshot, decision)
        else:
            job = await self._store(snapshot, decision)
        align(self._ports.fence, job)
        for action in decision.actions if act else ():
            await self._actions.run(job, action)
        if decision.status is None and not decision.actions:
            await self._settle(job, decision)
        return decision

    async def _look(self) -> tuple[JobSnapshot, Decision] | None:
        snapshot = await self._ports.facts.snapshot(self._key.namespace, self._key.name)
        if snapshot is None or snapshot.job.metadata.uid != self._key.uid:
            return None
        snapshot = self._memory.overlay(snapshot)
        if snapshot.job.metadata.deletion_timestamp is not None:
            return snapshot, Decision(status=None)
        return snapshot, self._ports.decide(snapshot)

    async def _store(self, snapshot: JobSnapshot, decision: Decision) -> TrainingJob:
        if decision.status is None:
            return snapshot.job
        mutation = unless_changed(snapshot.job, decision.status)
        return await self._ports.store.update_status(self._key.namespace, self._key.name, self._key.uid, mutation)

    async def _settle(self, job: TrainingJob, decision: Decision) -> None:
        """Let go of a job that has ended. Also finishes what a crash between status and reclaim left undone."""
        if not ended(job.status):
            return
        if self._ports.effects.held(job):
            await self._free(job)
        self._settled = decision.wake_after_seconds is None

    async def _bury(self, job: TrainingJob) -> None:
        """The object is being deleted: free what it holds and let it go; the next event says that it is gone."""
        self._ports.fence.close(self._key.uid)
        if self._ports.effects.held(job):
            await self._free(job)

    async def _free(self, job: TrainingJob) -> None:
        if not self._memory.reclaimed:
            await self._actions.reclaim(job)
        await self._ports.effects.release(job)


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
