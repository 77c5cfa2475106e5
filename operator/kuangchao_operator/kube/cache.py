"""Everything the operator has seen of the cluster, as values. Fed by watches and full lists; read by snapshots.

Never decides and never calls the API server.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from kuangchao_contracts import names
from kuangchao_contracts.api import ResourceDescriptorObject, ResourcePool, TrainingJob
from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_operator.kube.index import Index, Key, key_of
from kuangchao_operator.kube.nodes import NodeRecord, node_record
from kuangchao_operator.kube.podfacts import PodRecord, pod_record

KINDS: Final = ("ResourcePool", "ResourceDescriptor", "Node", "TrainingJob", "Pod")
"""In the order in which they are listed at the start: what jobs depend on comes before jobs."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job and whether our finalizer is on it."""

    job: TrainingJob
    held: bool


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool and whether our finalizer is on it."""

    pool: ResourcePool
    held: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One object before and after an event; None where it did not exist."""

    kind: str
    before: Any
    after: Any


class Cache:
    """Indexes of all kinds, and pods by job and jobs by pool."""

    def __init__(self) -> None:
        self.jobs: Index[JobRecord] = Index(_job)
        self.pods: Index[PodRecord] = Index(pod_record)
        self.nodes: Index[NodeRecord] = Index(node_record)
        self.pools: Index[PoolRecord] = Index(_pool)
        self.descriptors: Index[NodeDescriptor] = Index(_descriptor)
        self._by_kind: dict[str, Index[Any]] = {
            "TrainingJob": self.jobs,
            "Pod": self.pods,
            "Node": self.nodes,
            "ResourcePool": self.pools,
            "ResourceDescriptor": self.descriptors,
        }
        self._pods_of: dict[str, dict[Key, PodRecord]] = defaultdict(dict)
        self._jobs_in: dict[str, dict[Key, JobRecord]] = defaultdict(dict)
        self._listeners: list[Callable[[Change], None]] = []
        self._derived: dict[Any, Any] = {}

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Tell of every change from now on, whoever brought it: a watch, a list or our own write."""
        self._listeners.append(listener)

    def derived(self, key: Any, make: Callable[[], T]) -> T:
        """A value made from the cache, made anew only when something has changed: many loops ask for the same pool."""
        if key not in self._derived:
            self._derived[key] = make()
        value: T = self._derived[key]
        return value

    def see(self, kind: str, body: dict[str, Any]) -> None:
        """Take in an object as it is now."""
        self._changed(kind, *self._by_kind[kind].see(body))

    def forget(self, kind: str, body: dict[str, Any]) -> None:
        """Take in that an object is gone."""
        self._changed(kind, self._by_kind[kind].forget(body), None)

    def sweep(self, kind: str, bodies: list[dict[str, Any]], version: int) -> None:
        """Take in a full list."""
        for body in bodies:
            self.see(kind, body)
        for value in self._by_kind[kind].sweep({key_of(body) for body in bodies}, version):
            self._changed(kind, value, None)

    def missing(self, kind: str, name: str, namespace: str = "") -> None:
        """Take in that an object was looked for and not found."""
        self._changed(kind, self._by_kind[kind].drop(name, namespace), None)

    def pods_of(self, job_uid: str) -> list[PodRecord]:
        """Pods that bear a job's uid."""
        return list(self._pods_of.get(job_uid, {}).values())

    def pods_by_job(self) -> dict[str, list[PodRecord]]:
        """All pods, by the uid of the job they say they are of."""
        return {uid: list(pods.values()) for uid, pods in self._pods_of.items() if pods}

    def jobs_in(self, pool: str) -> list[JobRecord]:
        """Jobs that name a pool."""
        return list(self._jobs_in.get(pool, {}).values())

    def newest_descriptors(self) -> dict[str, NodeDescriptor]:
        """The descriptor in force of each node."""
        newest: dict[str, NodeDescriptor] = {}
        for descriptor in self.descriptors:
            known = newest.get(descriptor.node)
            if known is None or descriptor.generation > known.generation:
                newest[descriptor.node] = descriptor
        return newest

    def _changed(self, kind: str, before: Any, after: Any) -> None:
        if before == after:
            return
        self._relate(before, after)
        self._derived.clear()
        for listener in self._listeners:
            listener(Change(kind, before, after))

    def _relate(self, before: Any, after: Any) -> None:
        for value, add in ((before, False), (after, True)):
            if isinstance(value, PodRecord):
                self._put(self._pods_of, value.job_uid, (value.namespace, value.fact.name), value, add=add)
            elif isinstance(value, JobRecord):
                metadata = value.job.metadata
                self._put(self._jobs_in, value.job.spec.pool, (metadata.namespace or "", metadata.name), value, add=add)

    @staticmethod
    def _put(table: dict[str, dict[Key, Any]], group: str, key: Key, value: Any, *, add: bool) -> None:
        if add:
            table[group][key] = value
        elif group in table:
            table[group].pop(key, None)
            if not table[group]:
                del table[group]


def _held(body: dict[str, Any]) -> bool:
    return names.FINALIZER in (body["metadata"].get("finalizers") or ())


def _job(body: dict[str, Any]) -> JobRecord | None:
    job = _parsed(TrainingJob, body)
    return JobRecord(job, _held(body)) if job else None


def _pool(body: dict[str, Any]) -> PoolRecord | None:
    pool = _parsed(ResourcePool, body)
    return PoolRecord(pool, _held(body)) if pool else None


def _descriptor(body: dict[str, Any]) -> NodeDescriptor | None:
    made = _parsed(ResourceDescriptorObject, body)
    return made.spec if made else None


def _parsed(model: Any, body: dict[str, Any]) -> Any:
    """The typed object, or None for one that an older or newer schema let in: it must not stop all others."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False)[:3])
        logger.warning("%s %s is not understood: %s", body.get("kind"), "/".join(key_of(body)), where)
        return None
