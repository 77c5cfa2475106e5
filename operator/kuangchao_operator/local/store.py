"""The job and its status in memory, mirrored to status.json for people and programs that look on."""

from collections.abc import Callable

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import ConflictError
from kuangchao_operator.facts.store import JobStore, Mutation


class LocalJobStore(JobStore):
    """Holds the one job of a run. Writes happen on the event loop, so compare and swap are one step by themselves."""

    def __init__(self, job: TrainingJob, written: Callable[[TrainingJob], None]) -> None:
        self._job, self._written = job, written

    @property
    def current(self) -> TrainingJob:
        """The job as it is now."""
        return self._job

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        """The job, if it is this one."""
        metadata = self._job.metadata
        return self._job if (metadata.namespace, metadata.name) == (namespace, name) else None

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        """Apply `mutate` and keep the result."""
        job = await self.get(namespace, name)
        if job is None or job.metadata.uid != uid:
            raise ConflictError(f"there is no job {namespace}/{name} with this uid here")
        status = mutate(job)
        if status != job.status:
            version = str(int(job.metadata.resource_version or 0) + 1)
            self._job = job.replace(status=status, metadata=job.metadata.replace(resource_version=version))
            self._written(self._job)
        return self._job

    def suspend(self) -> None:
        """What `kuangchao suspend` does in a cluster: the user's wish, written into the spec."""
        metadata = self._job.metadata.replace(generation=self._job.metadata.generation + 1)
        self._job = self._job.replace(spec=self._job.spec.replace(suspend=True), metadata=metadata)
