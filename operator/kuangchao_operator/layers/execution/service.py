"""Execution's port in the control plane: launching and stopping through the launcher, and the gang's join barrier.

Carries out what was decided and checks that it still is: an attempt that is over starts nothing. Changes no plan.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.audit import AuditSink
from kuangchao_contracts.audit import now as utc_now
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import (
    ConflictError,
    FutureEpochError,
    InvalidInputError,
    PermissionDeniedError,
    StaleEpochError,
)
from kuangchao_contracts.ports.execution import ExecutionControl, LaunchRequest, StopRequest
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.run import (
    Ack,
    Directive,
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LaunchSpec,
)
from kuangchao_operator.facts.store import JobStore
from kuangchao_operator.layers.execution import notes
from kuangchao_operator.layers.execution.facts import MAX_NUMBER, storable
from kuangchao_operator.layers.execution.launcher import Launcher, PlanSource
from kuangchao_operator.layers.execution.launchspec import launch_spec, newest_checkpoint
from kuangchao_operator.layers.execution.registry import AgentRegistry

MAX_ATTEMPTS: Final = 1_024
"""Attempts whose launch spec is kept, so that a polling gang of a thousand pods reads its job once."""

MAX_METRIC_NAMES: Final = 64 * 1024
"""Characters of all names of metrics in one heartbeat."""
JOIN_SECONDS: Final = 5.0
"""How long a join is held while the gang is incomplete: fewer calls and records than asking again and again, and the
last pod to come starts all others at once. Well below the 10 s that an agent waits for an answer."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What every pod of an attempt is told. The restore point is read once: all ranks must get the same."""

    launch: LaunchSpec
    incarnation: int
    restore: CheckpointRef | None


class ExecutionService(ExecutionControl):
    """Launch, stop, reclaim; join and heartbeat."""

    def __init__(
        self,
        store: JobStore,
        plans: PlanSource,
        launcher: Launcher,
        registry: AgentRegistry,
        sink: AuditSink,
        join_seconds: float = JOIN_SECONDS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._sink, self._clock = sink, clock
        self._store, self._plans, self._launcher, self._registry = store, plans, launcher, registry
        self._join_seconds = join_seconds
        self._attempts: OrderedDict[tuple[str, int], _Attempt] = OrderedDict()

    async def launch(self, capability: Capability, request: LaunchRequest) -> Ack:
        """Start what is recorded as the current attempt. Raises ConflictError when it is another one by now."""
        job = await self._job(capability)
        status = job.status
        wanted = (request.attempt, request.incarnation, request.plan_hash)
        if status is None or (status.attempt, status.incarnation, status.plan_hash) != wanted or not status.allocation:
            raise ConflictError(f"attempt {request.attempt} of job {job.metadata.name} is not the recorded one")
        await self._launcher.launch(job, request.attempt, request.incarnation)
        return Ack()

    async def stop(self, capability: Capability, request: StopRequest) -> Ack:
        """End pods and tokens of all incarnations up to the requested one."""
        job = await self._find(capability)
        if job is None:
            return Ack(detail="the job is gone")
        self._registry.stopping(job.metadata.uid, request.incarnation)
        await self._launcher.stop(job, request)
        return Ack()

    async def reclaim(self, capability: Capability, request: Empty) -> Ack:  # noqa: ARG002 - the port's signature
        """Free everything that the job holds."""
        job = await self._find(capability)
        if job is None:
            return Ack(detail="the job is gone")
        await self._launcher.reclaim(job)
        self._registry.forget(job.metadata.uid)
        for key in [k for k in self._attempts if k[0] == job.metadata.uid]:
            del self._attempts[key]
        return Ack()

    async def join(self, capability: Capability, request: JoinRequest) -> JoinReply:
        """Note the agent; once the whole gang is there, tell it what to run, where the store is and what to restore."""
        claims = capability.claims
        _own_pod(capability, request)
        if request.attempt != claims.att:
            late = request.attempt < claims.att
            raise (StaleEpochError if late else FutureEpochError)("the token belongs to another attempt")
        attempt = await self._attempt(capability)
        if request.incarnation != attempt.incarnation:
            raise StaleEpochError("the pod belongs to an incarnation that is over")
        self._registry.joined(claims.juid, request)
        gang, missing = await self._gang(claims.juid, request, attempt.launch.plan.pods)
        if missing:
            return JoinReply(ready=False, waiting_for=missing[:256], attempt=request.attempt)
        leader = gang[0]
        return JoinReply(
            ready=True,
            attempt=request.attempt,
            launch=attempt.launch,
            master_host=leader.host,
            master_port=leader.store_port,
            store_prefix=leader.store_prefix,
            restore=attempt.restore,
        )

    async def heartbeat(self, capability: Capability, request: HeartbeatRequest) -> HeartbeatReply:
        """Keep the agent's word. The gate has refused older attempts already; what it joined may still be older."""
        claims = capability.claims
        _own_pod(capability, request.join)
        capability.require_ranks(r.rank for r in request.ranks)
        _storable(request)
        stored = self._note(capability, request)
        if request.join.attempt != claims.att:
            return HeartbeatReply(attempt=claims.att, directive=Directive.REJOIN, notes_stored=stored)
        self._registry.beat(claims.juid, request)
        stop = self._registry.is_stopping(claims.juid, request.join.incarnation)
        directive = Directive.STOP if stop else Directive.CONTINUE
        return HeartbeatReply(attempt=claims.att, directive=directive, notes_stored=stored)

    def _note(self, capability: Capability, request: HeartbeatRequest) -> int | None:
        """Store what the gates of the pod's ranks have noted, once; the number of the batch.

        Not waited for: a store that cannot write owes the records, and must not make an agent look dead.
        """
        if request.notes is None:
            return None
        capability.require_ranks(note.rank for note in request.notes.notes)
        found = notes.records(capability.claims, request.join.pod_index, request.notes, self._clock())
        if self._registry.new_notes(capability.claims.juid, request.join, request.notes.seq):
            for record in found:
                self._sink.step_denied(record)
        return request.notes.seq

    async def _gang(self, job_uid: str, request: JoinRequest, pods: int) -> tuple[dict[int, JoinRequest], str]:
        """Who has joined, and who is still missing after a while ("" when the gang is complete)."""
        clock = asyncio.get_running_loop().time
        end = clock() + self._join_seconds
        while True:
            gang = self._registry.gang(job_uid, request.attempt, request.incarnation)
            absent = to_ranges(set(range(pods)) - set(gang))
            missing = f"pods {absent}" if absent else "" if gang[0].store_port else "the store of pod 0"
            if not missing or clock() >= end:
                return gang, missing
            await self._registry.arrival(job_uid, end - clock())

    async def _attempt(self, capability: Capability) -> _Attempt:
        """The recorded attempt of a token. Raises StaleEpochError or ConflictError when it is not recorded (yet)."""
        claims = capability.claims
        known = self._attempts.get((claims.juid, claims.att))
        if known is not None:
            return known
        job = await self._job(capability)
        if job.status is None or job.status.attempt != claims.att:
            raise StaleEpochError("the attempt is over")
        plan = await self._plans.plan(job)
        if plan is None:
            raise ConflictError("the plan is not recorded yet")
        fresh = _Attempt(launch_spec(job, plan), job.status.incarnation, newest_checkpoint(job))
        self._attempts[claims.juid, claims.att] = fresh
        while len(self._attempts) > MAX_ATTEMPTS:
            self._attempts.popitem(last=False)
        return fresh

    async def _job(self, capability: Capability) -> TrainingJob:
        job = await self._find(capability)
        if job is None:
            raise ConflictError(f"job {capability.claims.ns}/{capability.claims.job} is gone")
        return job

    async def _find(self, capability: Capability) -> TrainingJob | None:
        """The job that the call is about: the resource names it, and worker tokens its uid as well."""
        namespace, _, name = capability.resource.split("/")[:3]
        job = await self._store.get(namespace, name)
        if job is None or (capability.claims.pod is not None and job.metadata.uid != capability.claims.juid):
            return None
        return job


def _storable(request: HeartbeatRequest) -> None:
    """Raise InvalidInputError for what no status can hold."""
    if not all(map(storable, request.ranks)) or (request.lease_overdue_seconds or 0) > MAX_NUMBER:
        raise InvalidInputError("request.ranks", "(not shown)", "holds a number that no status can", MAX_NUMBER)
    if sum(map(len, request.metrics)) > MAX_METRIC_NAMES:
        raise InvalidInputError(
            "request.metrics", "(not shown)", "has longer names than a status can", MAX_METRIC_NAMES
        )


def _own_pod(capability: Capability, join: JoinRequest) -> None:
    """Raise PermissionDeniedError unless name, uid, index and incarnation are those of the token's own pod.

    The tokens with which a pod starts from a Secret name no uid: they are made before it.
    """
    claims = capability.claims
    capability.require_pod(join.pod)
    if claims.puid is not None and join.pod_uid != claims.puid:
        raise PermissionDeniedError("request comes from another pod of the same name")
    if join.pod != names.pod_name(claims.job, claims.juid, join.incarnation, join.pod_index):
        raise PermissionDeniedError("request names an index or incarnation that is not its pod's")
