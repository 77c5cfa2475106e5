"""Pods of jobs out of the cache, as the exchange of account tokens asks for them. Reads; decides nothing."""

from kuangchao_contracts import names
from kuangchao_operator.gate.accounts import WorkerPod
from kuangchao_operator.gate.minting import JobRef, PodRef
from kuangchao_operator.kube.cache import Cache, JobRecord
from kuangchao_operator.kube.podfacts import PodRecord


class CachedWorkerPods:
    """See gate.accounts.WorkerPods."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def find(self, namespace: str, name: str) -> WorkerPod | None:
        """The pod, if the job that it names is there."""
        pod = self._cache.pods.get(name, namespace)
        job = self._cache.jobs.get(pod.job, namespace) if pod else None
        if pod is None or job is None or job.job.metadata.uid != pod.job_uid:
            return None
        return worker_pod(pod, job)


def worker_pod(pod: PodRecord, record: JobRecord) -> WorkerPod:
    """What is known of a pod and its job."""
    fact, metadata, status = pod.fact, record.job.metadata, record.job.status
    per_pod = record.job.spec.devices.per_pod
    expected = names.pod_name(metadata.name, metadata.uid, fact.incarnation, fact.index)
    return WorkerPod(
        ref=PodRef(fact.name, tuple(range(fact.index * per_pod, (fact.index + 1) * per_pod)), pod.uid),
        job=JobRef(
            pod.namespace, metadata.name, metadata.uid, tuple(plugin.name for plugin in record.job.spec.plugins)
        ),
        account=pod.account,
        ours=fact.owned and fact.name == expected,
        deleting=fact.deleting,
        attempt=fact.attempt,
        incarnation=fact.incarnation,
        recorded=(status.attempt, status.incarnation) if status else None,
    )
