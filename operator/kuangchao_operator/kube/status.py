"""The store of jobs on the API server: status by compare-and-swap on the resourceVersion, and nothing else of a job."""

from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.api import ResourcePool, TrainingJob
from kuangchao_contracts.api.resourcepool import ResourcePoolStatus
from kuangchao_contracts.errors import ConflictError
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.client import JSON_PATCH, KubeApi, NotFoundError

MAX_TRIES: Final = 8


class KubeJobStore(JobStore):
    """Reads jobs live and shows what it has seen to the cache, so that the next snapshot is not older than a write."""

    def __init__(self, api: KubeApi, cache: Cache) -> None:
        self._api, self._cache = api, cache

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        """The job as the API server has it now."""
        body = await self._api.get(paths.item("TrainingJob", name, namespace))
        if body is None:
            self._cache.missing("TrainingJob", name, namespace)
            return None
        self._cache.see("TrainingJob", body)
        return TrainingJob.model_validate(body)

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        """Store what `mutate` makes of the current job; a write in between means reading and mutating again."""
        for _ in range(MAX_TRIES):
            job = await self.get(namespace, name)
            if job is None or job.metadata.uid != uid:
                raise ConflictError(f"job {namespace}/{name} is gone")
            status = mutate(job)
            if status == job.status:
                return job
            try:
                body = await self._put(job, status.wire())
            except (NotFoundError, ConflictError):
                continue
            self._cache.see("TrainingJob", body)
            return TrainingJob.model_validate(body)
        raise ConflictError(f"job {namespace}/{name}: others wrote its status {MAX_TRIES} times in a row")

    async def _put(self, job: TrainingJob, status: dict[str, Any]) -> dict[str, Any]:
        return await _put_status(self._api, job, "TrainingJob", status)


async def put_pool_status(api: KubeApi, pool: ResourcePool, status: ResourcePoolStatus) -> dict[str, Any]:
    """Store a pool's status if nobody wrote in between; the new object. Raises ConflictError or NotFoundError."""
    return await _put_status(api, pool, "ResourcePool", status.wire())


async def _put_status(
    api: KubeApi, made: TrainingJob | ResourcePool, kind: str, status: dict[str, Any]
) -> dict[str, Any]:
    """Replace the whole status of this very object in this very version.

    A JSON patch, because a PUT that leaves out metadata takes our finalizer away from its field manager, and because
    a merge patch would keep fields that the new status does not have.
    """
    metadata = made.metadata
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
        {"op": "add", "path": "/status", "value": status},
    ]
    path = paths.item(kind, metadata.name, metadata.namespace, "status")
    query = {"fieldManager": names.FIELD_MANAGER}
    return await api.request("PATCH", path, patch, query=query, content_type=JSON_PATCH)
