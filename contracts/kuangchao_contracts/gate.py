"""The gate: the only door between layers, one per process, the same code everywhere.

verify the token -> authorise the call -> record it by audit class -> call the port -> record the result.
"""

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.audit import AuditClass, AuditRecord, AuditSink, Decision, Stage, new_opid, now
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import SYSTEM, WORKER_ROLES, Claims
from kuangchao_contracts.policy import Policy, PolicyBook
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.base import Operation, Port, operations
from kuangchao_contracts.text import recordable
from kuangchao_contracts.tokens import TokenVerifier

log = logging.getLogger(__name__)
Parse = Callable[[Operation], Contract]
Method = Callable[..., Any]


class Fence(ABC):
    """What is current: a token that was minted under something older is judged against this."""

    @abstractmethod
    def attempt(self, job_uid: str) -> int | None:
        """Current attempt of a job; None when the job is unknown, finished or deleted (its attempt is closed)."""

    @abstractmethod
    def revoked(self, jti: str) -> bool:
        """Whether this token was taken back before its time."""

    def job_revoked(self, job_uid: str) -> bool:  # noqa: ARG002  # where nobody can take jobs back, none is
        """Whether all tokens that a job's workers hold were taken back."""
        return False


@dataclass(slots=True)
class _Call:
    """One call on its way through. `claims` is set once the signature is good: a denial can name its subject."""

    op: str
    resource: str
    opid: str
    started: float
    claims: Claims | None = None
    kid: str = ""


def _nobody(_: Claims) -> bool:
    return False


class Gate:
    """Dispatches calls to the ports registered in this process."""

    def __init__(
        self,
        process: str,
        verifier: TokenVerifier,
        fence: Fence,
        sink: AuditSink,
        clock: Callable[[], datetime] = now,
        policies: PolicyBook | None = None,
        hasty: Callable[[Claims], bool] = _nobody,
    ) -> None:
        """`hasty` is asked for each call that has a record of its own: whether its caller made too many lately."""
        self._process, self._verifier, self._fence, self._sink = process, verifier, fence, sink
        self._hasty = hasty
        self._clock, self._policies = clock, policies or PolicyBook()
        self._methods: dict[str, tuple[Operation, Method]] = {}
        self._audiences: dict[str, str] = {}

    def register(self, implementation: Port) -> None:
        """Serve all operations of a port implementation. Raises ValueError when an operation is served twice."""
        ports = [c for c in type(implementation).__mro__ if Port in c.__bases__]
        found = {
            name: (op, cast(Method, getattr(implementation, op.method)))
            for port in ports
            for name, op in operations(cast(type[Port], port)).items()
        }
        twice = sorted(found.keys() & self._methods.keys())
        if twice:
            raise ValueError(f"{twice[0]} is served twice")
        self._methods.update(found)
        for name, (op, _) in found.items():
            # one class may serve several layers; a plug-in has an audience of its own within its layer
            own = op.layer is implementation.layer
            self._audiences[name] = implementation.audience if own else op.layer.audience

    def operation(self, name: str) -> Operation:
        """The operation that this process serves under a name. Raises UnknownOperationError."""
        return self._served(name)[0]

    def audience(self, name: str) -> str:
        """For whom a token must be that calls an operation here: of a plug-in, the one that serves it."""
        return self._audiences.get(name) or OPERATIONS[name].layer.audience

    async def call(self, token: str | None, op: str, resource: str, request: Contract) -> Contract:
        """Make a call through the gate and await its result.

        Raises the exact CapabilityError of a refusal, AuditUnavailableError when a control call cannot be recorded
        (then nothing was done), and whatever the port raises.
        """
        return await self._through(token, op, resource, lambda spec: _typed(spec, request), new_opid())

    async def call_wire(
        self, token: str | None, op: str, resource: str, body: Mapping[str, Any], opid: str
    ) -> Contract:
        """The same for a body from the network, which is parsed only once the token is known to permit the call."""
        return await self._through(token, op, resource, lambda spec: _parsed(spec, body), opid)

    def recognises(self, token: str | None) -> bool:
        """Whether this very token was verified here a short while ago. Costs a hash; says nothing about a call."""
        return token is not None and self._verifier.recognises(token)

    async def require_good(self, token: str | None, op: str, opid: str) -> Claims:
        """The claims of a token that may be presented to the operation's layer now, before anything else is read.

        Raises the CapabilityError of a refusal, which is recorded.
        """
        try:
            claims, _ = self._verifier.genuine(_present(token))
            self._served(op)
            self._verifier.require_usable(claims, self._audiences[op])
            return claims
        except e.CapabilityError as error:
            await self.refuse(error, op, opid)
            raise

    async def refuse(self, error: e.CapabilityError, op: str, opid: str) -> None:
        """Record that a call was refused of which neither token nor body was looked at."""
        await self._refuse(self._denial(_Call(op, "", opid, 0.0), error))

    def call_now(self, token: str, op: str, resource: str, request: Contract) -> Contract:
        """The same door for step calls on a training thread: no await, no durable write."""
        call = _Call(op, resource, new_opid(), 0.0)
        try:
            spec, method, capability = self._admit(token, call)
            if capability is None or spec.audit is not AuditClass.STEP or not spec.sync:
                raise e.UnknownOperationError("not a step operation")
            typed = _typed(spec, request)
            self._sink.step(op, resource, capability.claims.sub, request)
            response = cast(Contract, method(capability, typed))
            self._sink.step_done(response)
            return response
        except e.CapabilityError as error:
            self._sink.step_denied(self._denial(call, error))
            raise

    async def _through(self, token: str | None, op: str, resource: str, parse: Parse, opid: str) -> Contract:
        call = _Call(op, resource, opid, time.perf_counter())
        try:
            spec, method, capability = self._admit(token, call)
        except e.CapabilityError as error:
            await self._refuse(self._denial(call, error))
            raise
        if capability is None:
            return cast(Contract, await _maybe(method(None, parse(spec))))
        try:
            request = parse(spec)
        except e.InvalidInputError as error:
            await self._refuse(
                self._record(spec, capability, "").replace(
                    stage=Stage.DENY, reason=error.code, detail=f"{error.field}: {error.why}"[:1024]
                )
            )
            raise
        record = self._record(spec, capability, hashlib.sha256(request.canonical()).hexdigest()).replace(
            detail=recordable(request.audit_text(), 1024)
        )
        if spec.audit is AuditClass.CONTROL:
            await self._intent(record, capability)
        return await self._run(spec, method, capability, request, record, call.started)

    def _served(self, name: str) -> tuple[Operation, Method]:
        try:
            return self._methods[name]
        except KeyError:
            raise e.UnknownOperationError("operation is not served here") from None

    def _admit(self, token: str | None, call: _Call) -> tuple[Operation, Method, Capability | None]:
        spec, method = self._served(call.op)
        if spec.audit is AuditClass.PUBLIC:
            resources.parse(call.resource)
            return spec, method, None
        call.claims, call.kid = claims, kid = self._verifier.genuine(_present(token))
        self._verifier.require_usable(claims, self._audiences[call.op])
        authorise(claims, spec, call.resource, self._fence, self._policies.current)
        if spec.audit is not AuditClass.STEP and self._hasty(claims):
            raise e.TooMuchSentError("too many calls from this subject")
        capability = Capability.model_construct(
            claims=claims, kid=kid, op=call.op, resource=call.resource, opid=call.opid
        )
        return spec, method, capability

    async def _intent(self, record: AuditRecord, capability: Capability) -> None:
        claims = capability.claims
        try:
            await self._sink.durable(record, (claims.jti, claims.exp, claims.iat) if claims.one else None)
        except e.CapabilityError as error:  # the one-shot was used before
            await self._refuse(record.replace(stage=Stage.DENY, decision=Decision.DENY, reason=error.code))
            raise

    async def _run(
        self,
        spec: Operation,
        method: Method,
        capability: Capability,
        request: Contract,
        record: AuditRecord,
        started: float,
    ) -> Contract:
        decision, reason, detail = Decision.ERROR, "Interrupted", record.detail
        try:
            answer = cast(Contract, await _maybe(method(capability, request)))
            decision, reason = Decision.ALLOW, ""
            detail = recordable(" -> ".join(filter(None, (record.detail, answer.audit_text()))), 1024)
            return answer
        except e.KuangchaoError as error:
            decision = Decision.DENY if isinstance(error, e.CapabilityError) else Decision.ERROR
            reason, detail = error.code, _describe(error)
            raise
        except Exception as error:
            reason, detail = "Internal", type(error).__name__
            raise
        finally:
            result = record.replace(
                ts=self._clock(),
                decision=decision,
                reason=reason,
                detail=detail,
                duration_us=int((time.perf_counter() - started) * 1e6),
                stage=Stage.RESULT if spec.audit is AuditClass.CONTROL else Stage.READ,
            )
            await self._finish(spec, request, result)

    async def _finish(self, spec: Operation, request: Contract, result: AuditRecord) -> None:
        if spec.audit is AuditClass.CONTROL:
            await self._settle(result)
        elif result.decision is Decision.DENY:
            await self._refuse(result.replace(stage=Stage.DENY))
        elif spec.audit is AuditClass.READ:
            self._sink.best_effort(result)
        else:
            self._sink.step(spec.name, result.resource, result.subject, request)

    async def _settle(self, result: AuditRecord) -> None:
        """Record how a control call ended. It has ended: a store that fails now must not hide the answer."""
        try:
            await self._sink.durable(result)
        except e.AuditUnavailableError:
            log.warning("no audit record for the result of %s (operation %s)", result.op, result.opid)

    async def _refuse(self, denial: AuditRecord) -> None:
        """Record a denial. It stays a denial when the store fails."""
        try:
            await self._sink.durable(denial)
        except e.AuditUnavailableError:
            log.warning("no audit record for a denial of %s, %s (operation %s)", denial.op, denial.reason, denial.opid)

    def _denial(self, call: _Call, error: e.CapabilityError) -> AuditRecord:
        known = call.op in OPERATIONS
        return AuditRecord(
            ts=self._clock(),
            opid=call.opid,
            stage=Stage.DENY,
            layer=call.op.split(".")[0] if known else "unknown",
            op=call.op if known else recordable(call.op, 64),
            resource=recordable(call.resource, 512),
            decision=Decision.DENY,
            reason=error.code,
            process=self._process,
            kid=call.kid,
            **(_actor(call.claims) if call.claims else {"subject": "unverified"}),
        )

    def _record(self, spec: Operation, capability: Capability, request_sha256: str) -> AuditRecord:
        return AuditRecord(
            ts=self._clock(),
            opid=capability.opid,
            stage=Stage.INTENT,
            layer=spec.layer.value,
            op=spec.name,
            resource=capability.resource,
            kid=capability.kid,
            decision=Decision.ERROR,
            reason="Pending",
            request_sha256=request_sha256,
            process=self._process,
            **_actor(capability.claims),
        )


def _present(token: str | None) -> str:
    if not token:
        raise e.MalformedTokenError("no token")
    return token


def _actor(claims: Claims) -> dict[str, Any]:
    return {
        "subject": claims.sub,
        "issuer": claims.iss,
        "jti": claims.jti,
        "job": claims.job,
        "job_uid": claims.juid,
        "attempt": claims.att,
        "policy": claims.polv,
    }


def authorise(claims: Claims, spec: Operation, resource: str, fence: Fence, policy: Policy) -> None:
    """Judge a genuine token against one call: attempt, revocation, tenant, job, kind, capability, policy, one-shot.

    Raises the CapabilityError that names the first thing wrong. Judged on every call, never cached.
    """
    if not spec.stale_ok:
        check_attempt(claims, 1 if claims.juid == SYSTEM else fence.attempt(claims.juid))
    # what a lease was exchanged for goes with it: whoever stole the lease could have exchanged it a moment before
    family = filter(None, (claims.jti, claims.par))
    if any(map(fence.revoked, family)) or (claims.role in WORKER_ROLES and fence.job_revoked(claims.juid)):
        raise e.RevokedTokenError("token was revoked")
    segments = resources.parse(resource)
    if segments[0] != claims.ns:
        raise e.CrossTenantError("resource is in another namespace")
    if segments[1] != spec.kind:
        raise e.PermissionDeniedError(f"operation works on {spec.kind}")
    if spec.kind == "jobs" and segments[2] != claims.job:
        raise e.PermissionDeniedError("resource is another job")
    if any(grant.op not in OPERATIONS for grant in claims.cap):
        raise e.UnknownOperationError("token grants an operation that does not exist")
    right = policy.right_now(claims.sub, spec.name, claims.polv)
    if not any(grant.op == spec.name and resources.covers(grant.res, resource) for grant in claims.cap):
        raise e.PermissionDeniedError("token does not grant this operation on this resource")
    if (spec.one_shot or right.one_shot) and not claims.one:
        raise e.OneShotRequiredError("operation needs a one-shot token")
    if claims.one and spec.audit is not AuditClass.CONTROL:
        # only the durable intent uses a one-shot up; elsewhere it would be good for many calls
        raise e.PermissionDeniedError("one-shot tokens are for control calls")


def check_attempt(claims: Claims, current: int | None) -> None:
    """Raise StaleEpochError or FutureEpochError unless the token belongs to the current attempt (None: closed)."""
    if current is None or claims.att < current:
        raise e.StaleEpochError("token belongs to an attempt that is over")
    if claims.att > current:
        raise e.FutureEpochError("token belongs to an attempt that has not begun")


def _typed(spec: Operation, request: Contract) -> Contract:
    if not isinstance(request, spec.request):
        raise e.InvalidInputError("request", type(request).__name__, f"{spec.name} takes {spec.request.__name__}")
    return request


def _parsed(spec: Operation, body: Mapping[str, Any]) -> Contract:
    """The request in a body. The error says where and what kind of fault, never the value: it may be anything."""
    try:
        return spec.request.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = recordable(".".join(("request", *map(str, first["loc"]))), 256)
        raise e.InvalidInputError(field, "(not shown)", first["type"].replace("_", " ")) from None


def _describe(error: e.KuangchaoError) -> str:
    """Text of an error for a record, without values that a caller sent."""
    text = f"{error.field}: {error.why}" if isinstance(error, e.InvalidInputError) else str(error)
    return text[:1024]


async def _maybe(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value
