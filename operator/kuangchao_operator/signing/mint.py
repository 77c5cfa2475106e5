"""Minting: what may be signed at all. The last judge before a token exists; trusts nothing in the request.

Never logs a token, never signs a claim set that the verifier would refuse.
"""

import secrets
from collections.abc import Callable
from typing import Any

import jwt

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.claims import SYSTEM, WORKER_ROLES
from kuangchao_contracts.keys import b64url
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.minting import MintedToken, MintRequest
from kuangchao_contracts.policy import Policy
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.tokens import (
    ALGORITHM,
    MAX_LEASE_SECONDS,
    MAX_ONE_SHOT_SECONDS,
    MAX_TOKEN_BYTES,
    TOKEN_TYPE,
    parse_claims,
)
from kuangchao_operator.signing.keystore import KeyStore
from kuangchao_operator.signing.policy import PolicyKeeper


class Minter:
    """Signs tokens for one issuer name."""

    def __init__(self, keys: KeyStore, issuer: str, clock: Callable[[], float], policies: PolicyKeeper) -> None:
        self._keys, self._issuer, self._clock, self._policies = keys, issuer, clock, policies

    def mint(self, request: MintRequest) -> MintedToken:
        """A token for a request. Raises the CapabilityError that says why it may not exist."""
        check_lifetime(request)
        check_subject(request)
        policy = self._policies.current
        limit = min(check_grant(request, grant.op, grant.res, policy) for grant in request.grants)
        payload = self._payload(request, min(request.lifetime_seconds, limit))
        check_delegation(request, payload["exp"])
        parse_claims(payload)
        kid, key = self._keys.signing_key()
        token = jwt.encode(payload, key, algorithm=ALGORITHM, headers={"typ": TOKEN_TYPE, "kid": kid})
        if len(token) > MAX_TOKEN_BYTES:
            raise e.TokenTooLargeError("token would exceed the largest that verifiers take")
        return MintedToken(token=token, jti=payload["jti"], expires=payload["exp"])

    def _payload(self, request: MintRequest, lifetime: int) -> dict[str, Any]:
        now = int(self._clock())
        required: dict[str, Any] = {
            "iss": self._issuer,
            "sub": request.subject,
            "aud": request.audience,
            "iat": now,
            "nbf": now,
            "exp": now + lifetime,
            "jti": b64url(secrets.token_bytes(16)),
            "cap": [{"op": grant.op, "res": grant.res} for grant in request.grants],
            "ns": request.namespace,
            "job": request.job,
            "juid": request.job_uid,
            "att": request.attempt,
            "polv": self._policies.stamp(),
            "one": request.one_shot,
        }
        optional = {
            "ranks": request.ranks,
            "pod": request.pod,
            "puid": request.pod_uid,
            "par": request.parent.jti if request.parent else None,
        }
        return required | {name: value for name, value in optional.items() if value is not None}


def check_lifetime(request: MintRequest) -> None:
    """Raise LifetimeExceededError for a token that would live too long."""
    limit = MAX_ONE_SHOT_SECONDS if request.one_shot else MAX_LEASE_SECONDS
    if request.lifetime_seconds > limit:
        raise e.LifetimeExceededError(f"lifetime must be 1 to {limit} seconds")


def check_subject(request: MintRequest) -> None:
    """Raise PermissionDeniedError unless subject, job, pod and attempt belong together."""
    kind, _, name = request.subject.partition(":")
    if kind == "layer":
        if name not in [layer.value for layer in Layer]:
            raise e.PermissionDeniedError("subject is no layer")
        if request.pod or request.ranks or request.pod_uid:
            raise e.PermissionDeniedError("a layer has no pod and no ranks")
    elif kind in WORKER_ROLES:
        if not request.pod or not request.ranks:
            raise e.PermissionDeniedError("a worker token names its pod and ranks")
        if SYSTEM in (request.job, request.job_uid):
            raise e.PermissionDeniedError("a worker token belongs to a job and one of its attempts")
        if name != f"{request.namespace}/{request.job}/{request.pod}":
            raise e.PermissionDeniedError("subject does not name the pod of the request")
    if request.job_uid == SYSTEM and request.attempt != 1:
        raise e.PermissionDeniedError("outside any job the attempt is 1")


def check_grant(request: MintRequest, op: str, resource: str, policy: Policy) -> int:
    """How long the policy lets a token with this right live. Raises the error that says why there may be none."""
    spec = OPERATIONS.get(op)
    if spec is None:
        raise e.UnknownOperationError("operation does not exist")
    # the front door's leases also list the one-shots that they may be exchanged for
    exchangeable = request.audience == Layer.INTERFACE.audience and spec.one_shot
    if not spec.layer.accepts(request.audience) and not exchangeable:
        raise e.InvalidAudienceError("operation is served by another audience")
    right = policy.right(request.subject, op)
    segments = resources.parse(resource, allow_wildcard=True)
    if segments[0] != request.namespace:
        raise e.CrossTenantError("resource is in another namespace")
    if segments[1] != spec.kind:
        raise e.PermissionDeniedError(f"operation works on {spec.kind}")
    if spec.kind == "jobs" and segments[2] != request.job:
        raise e.PermissionDeniedError("resource is not the job of the token")
    if not right.covers(request.namespace, request.job, resource):
        raise e.PermissionDeniedError("policy does not allow this operation on this resource")
    if exchangeable and not request.one_shot:
        return MAX_LEASE_SECONDS  # the lease is good for nothing but the exchange; the one-shot will be limited
    if right.one_shot and not request.one_shot:
        raise e.OneShotRequiredError("policy demands a one-shot for this operation")
    return right.max_ttl


def check_delegation(request: MintRequest, expires: int) -> None:
    """Raise DelegationError unless the new token only narrows its parent, which was not delegated itself."""
    parent = request.parent
    if parent is None:
        return
    if parent.par is not None:
        raise e.DelegationError("a delegated token cannot be delegated further")
    same = (
        (parent.sub, request.subject),
        (parent.ns, request.namespace),
        (parent.job, request.job),
        (parent.juid, request.job_uid),
        (parent.att, request.attempt),
        (parent.pod, request.pod),
        (parent.ranks, request.ranks),
        (parent.puid, request.pod_uid),
    )
    if any(old != new for old, new in same):
        raise e.DelegationError("a delegated token keeps subject, job, attempt and pod of its parent")
    if parent.one or expires > parent.exp:
        raise e.DelegationError("a delegated token cannot outlive its parent")
    for grant in request.grants:
        if not any(have.op == grant.op and resources.narrower(have.res, grant.res) for have in parent.cap):
            raise e.DelegationError("a delegated token cannot hold what its parent does not")
