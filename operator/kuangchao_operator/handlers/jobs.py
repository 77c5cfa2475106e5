"""One loop for every job that needs one, woken by whatever changes around it.

Not kopf daemons: kopf starts none for an object that is already being deleted when the operator comes up, cancels one
that is still cleaning up, and takes the finalizer of a finished job away only at the next event of that job.
"""

import asyncio
import logging

from kuangchao_operator.handlers.changes import devices_freed, job_key, needs_loop, urgent
from kuangchao_operator.kube.cache import Cache, Change, JobRecord
from kuangchao_operator.kube.podfacts import PodRecord
from kuangchao_operator.shell.fencing import align, ended
from kuangchao_operator.shell.loop import JobKey, JobLoop, LoopPorts

logger = logging.getLogger(__name__)


class JobLoops:
    """Starts, wakes and ends the loops. `start` only after the cache is full: admission counts what all jobs hold."""

    def __init__(self, cache: Cache, ports: LoopPorts) -> None:
        self._cache, self._ports = cache, ports
        self._loops: dict[str, tuple[JobLoop, asyncio.Task[None]]] = {}
        self._started = False
        cache.listen(self.changed)

    def __len__(self) -> int:
        return len(self._loops)

    def align_fence(self) -> None:
        """Let the gate know every running attempt before it answers its first call."""
        for record in self._cache.jobs:
            align(self._ports.fence, record.job)

    def start(self) -> None:
        """Start the loops of all jobs seen so far; later ones start as they are seen."""
        self._started = True
        for record in self._cache.jobs:
            self._ensure(record)

    async def stop(self) -> None:
        """End all loops. Whatever they were doing can be repeated."""
        self._started = False
        tasks = [task for _, task in self._loops.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self, job_uid: str, *, hurry: bool = False) -> None:
        """Something about a job has changed."""
        entry = self._loops.get(job_uid)
        if entry is not None:
            entry[0].wake(urgent=hurry)

    def renew_tokens(self) -> None:
        """Have the tokens of all running jobs minted anew."""
        for loop, _ in self._loops.values():
            loop.renew_tokens()

    def changed(self, change: Change) -> None:
        """Take in a change of the cache."""
        if not self._started:
            return
        match change.kind:
            case "TrainingJob":
                self._job_changed(change.before, change.after)
            case "Pod":
                self._pod_changed(change.before, change.after)
            case "Node":
                node = change.after or change.before
                self._wake_jobs_on(node.name)
                self._wake_idle(None)
            case "ResourcePool":
                record = change.after or change.before
                self._wake_idle(record.pool.metadata.name)
            case "ResourceDescriptor":
                self._wake_idle(None)

    def _job_changed(self, before: JobRecord | None, after: JobRecord | None) -> None:
        if before is not None and (after is None or job_key(after) != job_key(before)):
            self.wake(before.job.metadata.uid, hurry=True)
        if after is not None:
            self._ensure(after)
            self.wake(after.job.metadata.uid, hurry=urgent(before, after))
        if devices_freed(before, after):
            self._wake_idle(None)  # pools may share nodes

    def _pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        record = after or before
        if record is None:
            return
        self.wake(record.job_uid)
        if after is None:
            self._wake_idle(None)

    def _wake_jobs_on(self, node: str) -> None:
        for uid, pods in self._cache.pods_by_job().items():
            if any(pod.fact.node == node for pod in pods):
                self.wake(uid)

    def _wake_idle(self, pool: str | None) -> None:
        """Wake the jobs of a pool (None: of all) that hold nothing: there may be room, or a pool, for them now."""
        for record in self._cache.jobs if pool is None else self._cache.jobs_in(pool):
            status = record.job.status
            if status is None or not (status.allocation or ended(status)):
                self.wake(record.job.metadata.uid)

    def _ensure(self, record: JobRecord) -> None:
        uid = record.job.metadata.uid
        if not self._started or uid in self._loops or not needs_loop(record):
            return
        key = job_key(record)
        loop = JobLoop(key, self._ports)
        task = asyncio.create_task(loop.run(), name=f"job {key.namespace}/{key.name}")
        self._loops[uid] = loop, task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: JobKey, task: asyncio.Task[None]) -> None:
        self._loops.pop(key.uid, None)
        if task.cancelled():
            return
        if task.exception() is not None:
            logger.error("loop of job %s/%s broke", key.namespace, key.name, exc_info=task.exception())
        record = self._cache.jobs.get(key.name, key.namespace)
        if record is not None and task.exception() is None:
            self._ensure(record)
