"""Tokens that the operator asks the issuer for: its own layers' and those of a pod. Nothing is signed here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kuangchao_contracts import names
from kuangchao_contracts.claims import SYSTEM, Grant
from kuangchao_contracts.gate import Fence
from kuangchao_contracts.layers import Layer, plugin_audience
from kuangchao_contracts.minting import MintedToken, MintRequest
from kuangchao_contracts.policy import Policy, PolicyBook
from kuangchao_contracts.policy.builtin import AUDIT_READS
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ranges import to_ranges
from kuangchao_contracts.resources import CLUSTER
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS, MAX_ONE_SHOT_SECONDS
from kuangchao_contracts.wire import TokenBundle, bundle_key

AUDIT_RESOURCE: Final = f"{CLUSTER}/audit/records"
AGENT_LEASES: Final[dict[Layer, tuple[str, ...]]] = {
    Layer.EXECUTION: ("execution.join", "execution.heartbeat"),
    Layer.STATE: ("state.restore_point",),
    Layer.INTERFACE: ("interface.exchange", "interface.feed", "state.commit_checkpoint"),
}
RANK_LEASES: Final[dict[Layer, tuple[str, ...]]] = {
    Layer.TOPOLOGY: ("topology.build", "topology.destroy"),
    Layer.EXECUTION: ("execution.context",),
    Layer.STATE: ("state.submit_gradients", "state.save", "state.restore", "state.snapshot"),
}
PLUGIN_LEASE: Final = ("plugin.open_step", "plugin.save", "plugin.restore")
"""What a rank may ask of each plug-in that its job names, under a lease of that plug-in's own."""


class Issuer(Protocol):
    """What is needed of the issuer's client."""

    def mint(self, requests: Sequence[MintRequest]) -> Awaitable[tuple[MintedToken, ...]]:
        """Tokens in the order of the requests."""


@dataclass(frozen=True, slots=True)
class JobRef:
    """The job that a token is about."""

    namespace: str
    name: str
    uid: str
    plugins: tuple[str, ...] = field(default=(), compare=False)
    """Names of the plug-ins whose leases its ranks get."""

    @property
    def resource(self) -> str:
        """The gate's resource string."""
        return names.job_resource(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod and the ranks that it runs."""

    name: str
    ranks: tuple[int, ...]
    uid: str | None = None


class LayerTokens:
    """Mints for layers and workers; keeps leases until half their life is over."""

    def __init__(
        self, issuer: Issuer, fence: Fence, clock: Callable[[], float], policies: PolicyBook | None = None
    ) -> None:
        self._issuer, self._fence, self._clock = issuer, fence, clock
        self._policies = policies or PolicyBook()
        self._leases: dict[tuple[str, JobRef, str, int], tuple[str, float]] = {}
        self._lock = asyncio.Lock()

    async def token(self, holder: Layer, job: JobRef, op: str) -> str:
        """A token with which a layer may call an operation on a job: a one-shot where needed, else a kept lease.

        It belongs to the current attempt, and is refused when the attempt changes before its use. While the fence is
        closed (before the first attempt, suspended, ended) it belongs to no attempt: only layers get such tokens.
        """
        attempt = self._fence.attempt(job.uid)
        if OPERATIONS[op].one_shot or self._policies.current.right(holder.subject, op).one_shot:
            request = self._layer_request(holder, job, op, attempt, one_shot=True)
            return (await self._issuer.mint([request]))[0].token
        return await self._lease(holder, job, op, attempt)

    async def audit_bundle(self) -> TokenBundle:
        """The lease of the governance process: audit queries on the whole cluster."""
        request = MintRequest(
            subject=Layer.GOVERNANCE.subject,
            audience=Layer.GOVERNANCE.audience,
            grants=tuple(Grant(op=op, res=AUDIT_RESOURCE) for op in AUDIT_READS),
            namespace=CLUSTER,
            lifetime_seconds=MAX_LEASE_SECONDS,
        )
        minted = (await self._issuer.mint([request]))[0]
        key = bundle_key(Layer.GOVERNANCE.value, Layer.GOVERNANCE.audience)
        return TokenBundle(tokens={key: minted.token}, attempt=1, expires=minted.expires)

    async def worker_bundles(self, job: JobRef, attempt: int, pods: Sequence[PodRef]) -> tuple[TokenBundle, ...]:
        """All leases of several pods, minted together; what the policy does not allow is left out."""
        policy = self._policies.current
        wanted = [worker_requests(job, attempt, pod, policy) for pod in pods]
        flat = [request for requests in wanted for request in requests.values()]
        minted = iter(await self._issuer.mint(flat))
        return tuple(_bundle(attempt, {key: next(minted) for key in requests}) for requests in wanted)

    def forget(self, job_uid: str) -> None:
        """Drop the leases kept for a job that is gone."""
        self._leases = {key: lease for key, lease in self._leases.items() if key[1].uid != job_uid}

    def forget_all(self) -> None:
        """Drop all leases kept: the key that signed them may be denied."""
        self._leases = {}

    async def _lease(self, holder: Layer, job: JobRef, op: str, attempt: int | None) -> str:
        key = (holder.subject, job, op, attempt or 0)
        async with self._lock:
            kept = self._leases.get(key)
            if kept is not None and kept[1] > self._clock():
                return kept[0]
            request = self._layer_request(holder, job, op, attempt, one_shot=False)
            minted = (await self._issuer.mint([request]))[0]
            self._drop_old()
            self._leases[key] = (minted.token, minted.expires - MAX_LEASE_SECONDS / 2)
            return minted.token

    def _drop_old(self) -> None:
        now = self._clock()
        self._leases = {key: lease for key, lease in self._leases.items() if lease[1] > now}

    def _layer_request(
        self, holder: Layer, job: JobRef, op: str, attempt: int | None, *, one_shot: bool
    ) -> MintRequest:
        return MintRequest(
            subject=holder.subject,
            audience=OPERATIONS[op].layer.audience,
            grants=(Grant(op=op, res=job.resource),),
            namespace=job.namespace,
            job=job.name,
            job_uid=job.uid if attempt is not None else SYSTEM,
            attempt=attempt or 1,
            one_shot=one_shot,
            lifetime_seconds=MAX_ONE_SHOT_SECONDS if one_shot else MAX_LEASE_SECONDS,
        )


def worker_requests(job: JobRef, attempt: int, pod: PodRef, policy: Policy) -> dict[str, MintRequest]:
    """What a pod's bundle consists of, by bundle key (see `wire.TokenBundle`).

    The issuer refuses whoever asks for too much, and a bundle is minted as a whole: one right that is taken away must
    not cost a job all others.
    """
    leases = [("agent", layer.audience, ops) for layer, ops in AGENT_LEASES.items()]
    leases += [("rank", layer.audience, ops) for layer, ops in RANK_LEASES.items()]
    leases += [("rank", plugin_audience(name), PLUGIN_LEASE) for name in job.plugins]
    return {
        bundle_key(role, audience): _worker_request(role, audience, allowed, job, attempt, pod)
        for role, audience, ops in leases
        if (allowed := [op for op in ops if policy.permits(role, op)])
    }


def _worker_request(
    role: str, audience: str, ops: Iterable[str], job: JobRef, attempt: int, pod: PodRef
) -> MintRequest:
    return MintRequest(
        subject=f"{role}:{job.namespace}/{job.name}/{pod.name}",
        audience=audience,
        grants=tuple(Grant(op=op, res=job.resource) for op in ops),
        namespace=job.namespace,
        job=job.name,
        job_uid=job.uid,
        attempt=attempt,
        lifetime_seconds=MAX_LEASE_SECONDS,
        ranks=to_ranges(pod.ranks),
        pod=pod.name,
        pod_uid=pod.uid,
    )


def _bundle(attempt: int, minted: dict[str, MintedToken]) -> TokenBundle:
    return TokenBundle(
        tokens={key: token.token for key, token in minted.items()},
        attempt=attempt,
        expires=min((token.expires for token in minted.values()), default=0),
    )
