"""The workers' two endpoints at every size of job: exchange a lease for a one-shot, and the feed."""

from collections.abc import Callable
from typing import Final

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Claims, Grant
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.minting import MintRequest
from kuangchao_contracts.policy import Policy, PolicyBook
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.interface import InterfaceControl
from kuangchao_contracts.run import Empty, ExchangeReply, ExchangeRequest, FeedReply
from kuangchao_contracts.tokens import MAX_ONE_SHOT_SECONDS
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.minting import Issuer

MAX_REVOKED: Final = 4_096
MARGIN_SECONDS: Final = 2
"""The issuer reads the clock a little later; a child that outlived its lease would be refused."""


class FrontDoor(InterfaceControl):
    """Hands out one-shots that are narrower than the lease that asks for them."""

    def __init__(
        self,
        issuer: Issuer,
        fence: JobFence,
        clock: Callable[[], float],
        jwks: Callable[[], Jwks],
        policies: PolicyBook | None = None,
    ) -> None:
        self._issuer, self._fence, self._clock, self._jwks = issuer, fence, clock, jwks
        self._policies = policies or PolicyBook()

    async def exchange(self, capability: Capability, request: ExchangeRequest) -> ExchangeReply:
        """A one-shot for one operation that the lease lists, bound to the same job, attempt and pod."""
        claims = capability.claims
        _check(claims, request, self._policies.current)
        left = int(claims.exp - self._clock()) - MARGIN_SECONDS
        if left < 1:
            raise e.ExchangeDeniedError("lease is about to expire")
        wanted = _child(claims, request, min(MAX_ONE_SHOT_SECONDS, left))
        try:
            minted = await self._issuer.mint([wanted])
        except e.CapabilityError as error:
            raise e.ExchangeDeniedError(f"issuer refuses: {error.code}") from None
        return ExchangeReply(token=minted[0].token)

    async def feed(self, capability: Capability, request: Empty) -> FeedReply:  # noqa: ARG002  # port's signature
        """What the holder must know to judge tokens by itself; attempt 0 when the job is closed."""
        jwks = self._jwks()
        return FeedReply(
            attempt=self._fence.attempt(capability.claims.juid) or 0,
            policy_generation=self._policies.current.generation,
            revoked=self._fence.revocations()[-MAX_REVOKED:],
            denied_kids=jwks.denied,
            jwks=jwks if jwks.denied else None,
        )


def _check(claims: Claims, request: ExchangeRequest, policy: Policy) -> None:
    spec = OPERATIONS.get(request.op)
    if spec is None or not spec.one_shot:
        raise e.ExchangeDeniedError("operation takes no one-shot")
    try:
        policy.right(claims.sub, request.op)
        listed = any(grant.op == request.op and resources.covers(grant.res, request.resource) for grant in claims.cap)
    except e.DeniedError as error:
        raise e.ExchangeDeniedError(f"not allowed: {error.code}") from None
    if not listed:
        raise e.ExchangeDeniedError("lease does not list this operation on this resource")


def _child(claims: Claims, request: ExchangeRequest, lifetime_seconds: int) -> MintRequest:
    return MintRequest(
        subject=claims.sub,
        audience=OPERATIONS[request.op].layer.audience,
        grants=(Grant(op=request.op, res=request.resource),),
        namespace=claims.ns,
        job=claims.job,
        job_uid=claims.juid,
        attempt=claims.att,
        one_shot=True,
        lifetime_seconds=lifetime_seconds,
        ranks=claims.ranks,
        pod=claims.pod,
        pod_uid=claims.puid,
        parent=claims,
    )
