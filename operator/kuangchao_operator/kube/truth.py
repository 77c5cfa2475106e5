"""What there is of a job when the operator comes up, to compare interrupted operations with. Reads, changes nothing."""

from kuangchao_contracts import names, resources
from kuangchao_contracts.claims import SYSTEM
from kuangchao_contracts.errors import InvalidResourceError
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.shell.recovery import JobTruth


class KubeTruth:
    """From the first full list; only Services are asked for."""

    def __init__(self, api: KubeApi, cache: Cache) -> None:
        self._api, self._cache = api, cache

    async def of(self, resource: str, job_uid: str) -> JobTruth | None:
        """The job that a record is about; None when that very job is gone. Raises UnavailableError.

        Layers act on a job whose attempt is closed under no uid; then its name has to do.
        """
        try:
            namespace, kind, name = resources.parse(resource)[:3]
        except InvalidResourceError:
            return None
        record = self._cache.jobs.get(name, namespace) if kind == "jobs" else None
        if record is None or job_uid not in (record.job.metadata.uid, SYSTEM):
            return None
        uid = record.job.metadata.uid
        service = await self._api.get(paths.item("Service", names.service_name(name, uid), namespace))
        pods = tuple(pod.fact for pod in self._cache.pods_of(uid) if pod.fact.owned)
        return JobTruth(record.job, pods, service is not None)
