"""The gate: the only door between layers, one per process, the same code everywhere.

verify the token -> authorise the call -> record it by audit class -> call the port -> record the result.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, cast

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.audit import AuditClass, AuditRecord, AuditSink, Decision, Stage, new_opid, now
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.policy import permits
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.base import Operation, Port, operations
from kuangchao_contracts.tokens import Claims, TokenVerifier

SYSTEM = "-"
"""`job` and `juid` of tokens that belong to no job; their attempt is always 1."""


class Fence(ABC):
    """What is current: a token that was minted under something older is judged against this."""

    @abstractmethod
    def attempt(self, job_uid: str) -> int | None:
        """Current attempt of a job; None when the job is unknown, finished or deleted (its attempt is closed)."""

    @abstractmethod
    def revoked(self, jti: str) -> bool:
        """Whether this token was taken back before its time."""


class Gate:
    """Dispatches calls to the ports registered in this process."""

    def __init__(self, process: str, verifier: TokenVerifier, fence: Fence, sink: AuditSink) -> None:
        self._process, self._verifier, self._fence, self._sink = process, verifier, fence, sink
        self._methods: dict[str, tuple[Operation, Callable[..., Any]]] = {}

    def register(self, implementation: Port) -> None:
        """Serve all operations of a port implementation. Raises ValueError when an operation is served twice."""
        ports = [c for c in type(implementation).__mro__ if Port in c.__bases__]
        for name, op in (item for port in ports for item in operations(cast(type[Port], port)).items()):
            if name in self._methods:
                raise ValueError(f"{name} is served twice")
            self._methods[name] = (op, getattr(implementation, op.method))

    def operation(self, name: str) -> Operation:
        """The operation that this process serves under a name. Raises UnknownOperationError."""
        if name not in self._methods:
            raise e.UnknownOperationError("operation is not served here")
        return self._methods[name][0]

    async def call(self, token: str | None, op: str, resource: str, request: Contract) -> Contract:
        """Make a call through the gate and await its result.

        Raises the exact CapabilityError of a refusal, AuditUnavailableError when a control call cannot be recorded
        (then nothing was done), and whatever the port raises.
        """
        opid, started = new_opid(), time.perf_counter()
        try:
            spec, method, capability = self._admit(token, op, resource, request, opid)
        except e.CapabilityError as error:
            await self._deny(op, resource, token, opid, error)
            raise
        if capability is None:
            return cast(Contract, await _maybe(method(None, request)))
        record = self._record(spec, capability, request)
        if spec.audit is AuditClass.CONTROL:
            await self._intent(record, capability)
        return await self._run(spec, method, capability, request, record, started)

    def call_now(self, token: str, op: str, resource: str, request: Contract) -> Contract:
        """The same door for step calls on a training thread: no await, no durable write."""
        opid = new_opid()
        try:
            spec, method, capability = self._admit(token, op, resource, request, opid)
            if capability is None or spec.audit is not AuditClass.STEP or not spec.sync:
                raise e.UnknownOperationError("not a step operation")
        except e.CapabilityError as error:
            self._sink.step_denied(self._denial(op, resource, None, "", opid, error))
            raise
        self._sink.step(op, resource, capability.claims.sub, request)
        return cast(Contract, method(capability, request))

    def _admit(
        self, token: str | None, name: str, resource: str, request: Contract, opid: str
    ) -> tuple[Operation, Callable[..., Any], Capability | None]:
        if name not in self._methods:
            raise e.UnknownOperationError("operation is not served here")
        spec, method = self._methods[name]
        if not isinstance(request, spec.request):
            raise e.InvalidInputError("request", type(request).__name__, f"{name} takes {spec.request.__name__}")
        if spec.audit is AuditClass.PUBLIC:
            resources.parse(resource)
            return spec, method, None
        if not token:
            raise e.MalformedTokenError("no token")
        claims, kid = self._verifier.verify(token, spec.layer.audience)
        authorise(claims, spec, resource, self._fence)
        return spec, method, Capability.model_construct(claims=claims, kid=kid, op=name, resource=resource, opid=opid)

    async def _intent(self, record: AuditRecord, capability: Capability) -> None:
        claims = capability.claims
        try:
            await self._sink.durable(record, (claims.jti, claims.exp, claims.iat) if claims.one else None)
        except e.CapabilityError as error:  # the one-shot was used before
            await self._sink.durable(record.replace(stage=Stage.DENY, decision=Decision.DENY, reason=error.code))
            raise

    async def _run(
        self,
        spec: Operation,
        method: Callable[..., Any],
        capability: Capability,
        request: Contract,
        record: AuditRecord,
        started: float,
    ) -> Contract:
        decision, reason, detail = Decision.ERROR, "Interrupted", ""
        try:
            answer = cast(Contract, await _maybe(method(capability, request)))
            decision, reason = Decision.ALLOW, ""
            return answer
        except e.KuangchaoError as error:
            decision = Decision.DENY if isinstance(error, e.CapabilityError) else Decision.ERROR
            reason, detail = error.code, str(error)[:1024]
            raise
        except Exception as error:
            reason, detail = "Internal", type(error).__name__
            raise
        finally:
            duration = int((time.perf_counter() - started) * 1e6)
            result = record.replace(
                ts=now(),
                decision=decision,
                reason=reason,
                detail=detail,
                duration_us=duration,
                stage=Stage.RESULT if spec.audit is AuditClass.CONTROL else Stage.READ,
            )
            await self._finish(spec, capability, request, result)

    async def _finish(self, spec: Operation, capability: Capability, request: Contract, result: AuditRecord) -> None:
        if result.decision is Decision.DENY and spec.audit is not AuditClass.CONTROL:
            await self._sink.durable(result.replace(stage=Stage.DENY))
        elif spec.audit is AuditClass.CONTROL:
            await self._sink.durable(result)
        elif spec.audit is AuditClass.READ:
            self._sink.best_effort(result)
        elif result.decision is Decision.ALLOW:
            self._sink.step(spec.name, capability.resource, capability.claims.sub, request)

    async def _deny(self, op: str, resource: str, token: str | None, opid: str, error: e.CapabilityError) -> None:
        claims, kid = self._claims_for_record(token, op)
        await self._sink.durable(self._denial(op, resource, claims, kid, opid, error))

    def _claims_for_record(self, token: str | None, op: str) -> tuple[Claims | None, str]:
        """Claims of a token whose signature is good, so that a denial names its subject; never unverified ones."""
        if token and op in self._methods:
            try:
                return self._verifier.verify(token, self._methods[op][0].layer.audience)
            except e.CapabilityError:
                pass
        return None, ""

    def _denial(
        self, op: str, resource: str, claims: Claims | None, kid: str, opid: str, error: e.CapabilityError
    ) -> AuditRecord:
        known = op in OPERATIONS
        return AuditRecord(
            ts=now(),
            opid=opid,
            stage=Stage.DENY,
            layer=op.split(".", maxsplit=1)[0] if known else "unknown",
            op=op if known else printable(op, 64),
            resource=printable(resource, 512),
            decision=Decision.DENY,
            reason=error.code,
            process=self._process,
            kid=kid,
            subject=claims.sub if claims else "unverified",
            issuer=claims.iss if claims else "",
            jti=claims.jti if claims else "",
            job=claims.job if claims else "",
            job_uid=claims.juid if claims else "",
            attempt=claims.att if claims else 0,
            policy=claims.polv if claims else 0,
        )

    def _record(self, spec: Operation, capability: Capability, request: Contract) -> AuditRecord:
        claims = capability.claims
        return AuditRecord(
            ts=now(),
            opid=capability.opid,
            stage=Stage.INTENT,
            layer=spec.layer.value,
            op=spec.name,
            resource=capability.resource,
            subject=claims.sub,
            issuer=claims.iss,
            jti=claims.jti,
            kid=capability.kid,
            job=claims.job,
            job_uid=claims.juid,
            attempt=claims.att,
            policy=claims.polv,
            decision=Decision.ERROR,
            reason="Pending",
            request_sha256=hashlib.sha256(request.canonical()).hexdigest(),
            process=self._process,
        )


def authorise(claims: Claims, spec: Operation, resource: str, fence: Fence) -> None:
    """Judge a genuine token against one call: attempt, revocation, tenant, kind, capability, policy, one-shot.

    Raises the CapabilityError that names the first thing wrong. Judged on every call, never cached.
    """
    current = 1 if claims.juid == SYSTEM else fence.attempt(claims.juid)
    if not spec.stale_ok:
        if current is None or claims.att < current:
            raise e.StaleEpochError("token belongs to an attempt that is over")
        if claims.att > current:
            raise e.FutureEpochError("token belongs to an attempt that has not begun")
    if fence.revoked(claims.jti):
        raise e.RevokedTokenError("token was revoked")
    segments = resources.parse(resource)
    if segments[0] != claims.ns:
        raise e.CrossTenantError("resource is in another namespace")
    if segments[1] != spec.kind:
        raise e.PermissionDeniedError(f"operation works on {spec.kind}")
    if not any(grant.op == spec.name and resources.covers(grant.res, resource) for grant in claims.cap):
        raise e.PermissionDeniedError("token does not grant this operation on this resource")
    permits(claims.sub, spec.name)
    if spec.one_shot and not claims.one:
        raise e.OneShotRequiredError("operation needs a one-shot token")


def printable(text: str, limit: int) -> str:
    """Text for a record: ASCII without control characters, cut to `limit`."""
    return (
        text[:limit]
        .encode("ascii", "backslashreplace")
        .decode()
        .translate(dict.fromkeys((*range(32), 127), "?"))[:limit]
    )


async def _maybe(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value
