"""Exchange of a pod's account token for its bundle: who may have one, and the record of it.

The API server says whose token it is, our own facts say whether that pod is entitled now. The API server alone would
not do: it keeps good answers for 10 s, and a deleted pod's token outlives its pod. Never logs or stores a token; those
that had a bundle are remembered by their SHA-256 for a while.
"""

import asyncio
import base64
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage
from kuangchao_contracts.text import recordable
from kuangchao_contracts.tokencache import ExpiringCache, digest
from kuangchao_contracts.tokens import MAX_TOKEN_BYTES
from kuangchao_contracts.wire import ACCOUNT_AUDIENCE, TokenBundle
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.limits import Buckets, FailureLimits
from kuangchao_operator.gate.minting import JobRef, LayerTokens, PodRef

log = logging.getLogger(__name__)
OPERATION: Final = "token.exchange"
KNOWN_SECONDS: Final = 600.0
"""How long an account token counts as known: longer than from one renewal of a bundle to the next."""
KNOWN_ENTRIES: Final = 16_384
APART_SECONDS: Final = 0.5
"""Between two exchanges of one account token: each costs API server and issuer, and no agent of ours is so hasty."""
REVIEWS_AT_ONCE: Final = 16
STRANGERS_BURST: Final = 100.0
STRANGERS_PER_SECOND: Final = 1.0
"""Reviews for one namespace of tokens that belong to no pod of a job: whoever may make accounts and tokens there makes
as many as he likes."""
POD_BURST: Final = 10.0
POD_PER_SECOND: Final = 0.5
"""Exchanges for one pod, by however many tokens: an agent comes every 135 s, and every 15 s while it is refused."""
_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class AccountReview:
    """What the API server says of an account token. Pod name and uid are "" for a token that is bound to no pod."""

    authenticated: bool = False
    audiences: tuple[str, ...] = ()
    user: str = ""
    pod: str = ""
    pod_uid: str = ""

    @property
    def namespace(self) -> str:
        """Namespace of the account; "" when it is no ServiceAccount."""
        parts = self.user.split(":")
        return parts[2] if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else ""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """A pod of a job as last seen, and which (attempt, incarnation) of its job is recorded; None: the job is gone."""

    ref: PodRef
    job: JobRef
    account: str
    ours: bool
    """Whether the job itself made it: its name, owner and labels are those that we give."""
    deleting: bool
    attempt: int
    incarnation: int
    recorded: tuple[int, int] | None


class Reviews(Protocol):
    """The API server's word on account tokens."""

    async def review(self, token: str) -> AccountReview:
        """Whose token it is. Raises UnavailableError when nobody can say."""


class WorkerPods(Protocol):
    """Pods of jobs, as last seen."""

    def find(self, namespace: str, name: str) -> WorkerPod | None:
        """The pod, or None."""


def entitle(review: AccountReview, pod: WorkerPod | None, attempt: int | None, *, revoked: bool) -> WorkerPod:
    """The pod, if it may have tokens now; `attempt` is what the fence has for its job.

    Raises ExchangeDeniedError, with a reason that is for the record only.
    """
    if not review.authenticated:
        raise e.ExchangeDeniedError("the API server does not know the account token")
    # an empty list means that the token is for the API server itself
    if ACCOUNT_AUDIENCE not in review.audiences:
        raise e.ExchangeDeniedError("the account token is for another audience")
    if not (review.namespace and review.pod and review.pod_uid):
        raise e.ExchangeDeniedError("the account token is bound to no pod")
    if pod is None or pod.ref.uid != review.pod_uid:
        raise e.ExchangeDeniedError("the pod is not known, or another one by now")
    if review.user != f"system:serviceaccount:{pod.job.namespace}:{pod.account}":
        raise e.ExchangeDeniedError("the account token is another account's than the pod's")
    if not pod.ours:
        raise e.ExchangeDeniedError("the pod was not made for its job by us")
    if pod.deleting:
        raise e.ExchangeDeniedError("the pod is being deleted")
    if revoked:
        raise e.ExchangeDeniedError("the job is revoked")
    if attempt is None or pod.recorded != (attempt, pod.incarnation) or pod.attempt != attempt:
        raise e.ExchangeDeniedError("the pod belongs to an attempt that is not the current one")
    return pod


def claimed(token: str) -> AccountReview:
    """What an account token says of itself: proven by nothing, and enough to refuse it."""
    part = token.split(".")[1]
    try:
        says = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        pod = says["kubernetes.io"].get("pod") or {}
        return AccountReview(user=str(says["sub"]), pod=str(pod.get("name", "")), pod_uid=str(pod.get("uid", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return AccountReview()


class AccountExchange:
    """Gives pods their bundles."""

    def __init__(
        self,
        reviews: Reviews,
        pods: WorkerPods,
        fence: JobFence,
        tokens: LayerTokens,
        sink: AuditSink,
        clock: Callable[[], datetime],
        process: str,
        limits: FailureLimits,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reviews, self._pods, self._fence, self._tokens = reviews, pods, fence, tokens
        self._sink, self._clock, self._process, self._limits = sink, clock, process, limits
        self._monotonic, self._entitled_before = monotonic, ExpiringCache[bool](KNOWN_ENTRIES)
        self._asked_just_now = ExpiringCache[bool](KNOWN_ENTRIES)
        self._reviewing = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._by_pod = Buckets(monotonic, POD_BURST, POD_PER_SECOND, KNOWN_ENTRIES)
        self._by_namespace = Buckets(monotonic, STRANGERS_BURST, STRANGERS_PER_SECOND, KNOWN_ENTRIES)

    async def exchange(self, token: str | None, opid: str, address: str | None) -> TokenBundle:
        """The bundle of the pod that the account token is bound to, with tokens that name its uid.

        An address that has sent many tokens which nobody knows costs the API server no more reviews for a while, except
        for account tokens that had a bundle before: pods that share an address with a flood must not lose theirs. So
        does a pod, or a namespace by tokens of no pod of ours, that has had many good ones reviewed.
        Raises ExchangeDeniedError, recorded once, whatever the reason is; UnavailableError when nobody can say.
        """
        review = AccountReview()
        try:
            presented = _presented(token)
            review = await self._review(presented, address)
            pod = self._entitled(review)
        except e.ExchangeDeniedError as error:
            await self._refuse(review, opid, str(error))
            raise
        self._entitled_before.put(digest(presented), True, self._monotonic() + KNOWN_SECONDS)
        bundle = (await self._tokens.worker_bundles(pod.job, pod.attempt, [pod.ref]))[0]
        # launching the job was recorded before anything was done; this only delivers what it granted, and must go on
        # while the store does not work, or an outage of the record would end training that runs
        self._sink.best_effort(self._record(review, opid, pod))
        return bundle

    async def _review(self, token: str, address: str | None) -> AccountReview:
        # only so many at once: each is charged when it is answered, and those under way must not outrun the bounds
        async with self._reviewing:
            return await self._review_one(token, address)

    async def _review_one(self, token: str, address: str | None) -> AccountReview:
        key, now = digest(token), self._monotonic()
        if self._asked_just_now.get(key, now):
            raise e.ExchangeDeniedError("the account token was here a moment ago")
        if not self._entitled_before.get(key, now):
            self._require_share(token, address)
        self._asked_just_now.put(key, True, now + APART_SECONDS)
        review = await self._reviews.review(token)
        share = self._share(review)
        if review.authenticated and share is not None:
            share[0].charge(share[1])
        else:
            self._limits.failed(address, e.InvalidSignatureError("nobody's account token"))
        return review

    def _require_share(self, token: str, address: str | None) -> None:
        """Refuse what has cost enough reviews. Only proven tokens are charged for, so a claim to be somebody else can
        have no effect but that the claim itself is refused."""
        if self._limits.exhausted(address):
            raise e.ExchangeDeniedError("too many failures from this address")
        share = self._share(claimed(token))
        if share is not None and share[0].empty(share[1]):
            raise e.ExchangeDeniedError("too many exchanges for this pod, or for this namespace by no pod of a job")

    def _share(self, review: AccountReview) -> tuple[Buckets, str] | None:
        """What a review is charged to: the pod if it is one of ours, else the account's namespace."""
        if not review.namespace:
            return None
        pod = self._pods.find(review.namespace, review.pod) if review.pod else None
        if pod is not None and pod.ours and pod.ref.uid == review.pod_uid:
            return self._by_pod, review.pod_uid
        return self._by_namespace, review.namespace

    def _entitled(self, review: AccountReview) -> WorkerPod:
        pod = self._pods.find(review.namespace, review.pod) if review.pod else None
        if pod is None:
            return entitle(review, None, None, revoked=False)
        uid = pod.job.uid
        return entitle(review, pod, self._fence.attempt(uid), revoked=self._fence.job_revoked(uid))

    async def _refuse(self, review: AccountReview, opid: str, why: str) -> None:
        record = self._record(review, opid, None).replace(
            stage=Stage.DENY, decision=Decision.DENY, reason=e.ExchangeDeniedError.code, detail=why
        )
        try:
            await self._sink.durable(record)
        except e.AuditUnavailableError:
            log.warning("no audit record yet for a denied exchange (operation %s)", opid)

    def _record(self, review: AccountReview, opid: str, pod: WorkerPod | None) -> AuditRecord:
        job = pod.job if pod else None
        return AuditRecord(
            ts=self._clock(),
            opid=opid,
            stage=Stage.RESULT,
            layer="interface",
            op=OPERATION,
            resource=recordable(f"{review.namespace or '-'}/pods/{review.pod or '-'}", 512),
            subject=f"agent:{job.namespace}/{job.name}/{review.pod}" if job else _claimed(review),
            job=job.name if job else "",
            job_uid=job.uid if job else "",
            attempt=pod.attempt if pod else 0,
            decision=Decision.ALLOW,
            detail=f"pod uid {pod.ref.uid}" if pod else "",
            process=self._process,
        )


def _presented(token: str | None) -> str:
    if token is None or len(token) > MAX_TOKEN_BYTES or _SHAPE.fullmatch(token) is None:
        raise e.ExchangeDeniedError("no account token")
    return token


def _claimed(review: AccountReview) -> str:
    return recordable(f"account:{review.user}", 256) if review.authenticated else "unverified"
