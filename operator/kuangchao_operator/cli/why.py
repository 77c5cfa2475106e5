"""`kuangchao why`: the operator's own explanation of a job, from objects read now. Judges by the operator's rules."""

from collections.abc import Iterator

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import PermissionDeniedError
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.cli.cluster import Cluster
from kuangchao_operator.cli.present import failure_lines, memory_lines
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import KINDS, Cache
from kuangchao_operator.kube.pools import pool_facts
from kuangchao_operator.layers.execution.model import PoolFacts
from kuangchao_operator.layers.execution.why import Explanation, explain

WAITING = (Phase.PENDING, Phase.QUEUED)
"""Phases of a job that has no devices and wants them; in any other the pool's numbers would only distract."""
OF_THE_POOL = (Reason.POOL_EMPTY, Reason.EXCEEDS_MAX_QUOTA, Reason.INFEASIBLE)
"""Why a job is stalled where the pool's numbers are the answer, and not the job's own fields."""


def explain_job(cluster: Cluster, job: TrainingJob) -> tuple[Explanation, str | None]:
    """The explanation, and what it lacks because the user may not read it."""
    try:
        return explain(job, live_pool(cluster, job.spec.pool)), None
    except PermissionDeniedError as error:
        return explain(job, None), f"without the pool's numbers: {error}"


def live_pool(cluster: Cluster, pool: str) -> PoolFacts | None:
    """The pool with all that uses it and waits for it, as the operator would see it now."""
    cache = Cache()
    for kind in KINDS:
        # of pods only ours matter; there may be very many others
        query = {"labelSelector": names.LABEL_JOB_UID} if kind == "Pod" else None
        for body in cluster.items(paths.collection(kind), query):
            cache.see(kind, body)
    return pool_facts(pool, cache)


def lines(job: TrainingJob, answer: Explanation) -> Iterator[str]:
    """The explanation for people."""
    yield f"{job.metadata.name} is {answer.phase}: {answer.reason}"
    if answer.message:
        yield f"  {answer.message}"
    if answer.phase in WAITING or (answer.phase is Phase.STALLED and answer.reason in OF_THE_POOL):
        yield from _pool(answer)
    yield from failure_lines("first failure", job.status.first_failure if job.status else None)
    yield from memory_lines(job.status)
    if answer.advice:
        yield f"what to do: {answer.advice}"


def _pool(answer: Explanation) -> Iterator[str]:
    if answer.total is None:
        return
    quota = f", quota {answer.quota}" if answer.quota is not None else ""
    yield f"pool {answer.pool}: needs {answer.need}, free {answer.free} of {answer.total}{quota}"
    if answer.position is not None:
        ahead = f" behind {', '.join(answer.ahead)}" if answer.ahead else ""
        yield f"  place {answer.position} in the queue{ahead}"
    for holder in answer.holders:
        yield f"  held by {holder.job}: {holder.devices}"
    for sick in answer.unhealthy:
        yield f"  not counted: {sick}"
