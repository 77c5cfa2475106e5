"""One control plane and one rank for all cases: real keys, minting, policy, fence, gates, SQLite store, operation log.

Time stands still. Tokens come from the issuer's own minting; what that refuses to make is signed with the issuer's
key by PyJWT, as if the issuer itself had been made to err.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery, AuditRecord
from kuangchao_contracts.base import Contract
from kuangchao_contracts.claims import SYSTEM, Grant
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.keys import Jwks, KeySet, KeyState, public_key
from kuangchao_contracts.minting import MintRequest
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.policy import BUILT_IN, PolicyBook
from kuangchao_contracts.ports import OPERATIONS, PORTS
from kuangchao_contracts.ports.base import Operation, Port, operations
from kuangchao_contracts.resources import CLUSTER
from kuangchao_contracts.tokens import TOKEN_TYPE, TokenVerifier
from kuangchao_operator.audit.coalesce import DenialCounter
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.gate.minting import AUDIT_RESOURCE
from kuangchao_operator.signing.keystore import KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PolicyKeeper
from tests.boundary.authority.holders import ATTEMPT, HOLDERS, OTHER_JOB, REVOKED_JTI, Holder
from tests.boundary.authority.recorders import Reached, empty, recorder
from tests.unit.authority.kit import ISSUER, NOW, Clock, FixedFence

REQUESTS = {name: empty(op.request) for name, op in OPERATIONS.items()}


class Issuer:
    """Keys and minting of one issuer. `clock` is its own, so that it can be made to mint in the past or the future."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.clock = clock
        self.keys = KeyStore(directory / "keys", clock)
        self.minter = Minter(self.keys, ISSUER, clock, PolicyKeeper(directory / "policy", None, clock))

    @property
    def kid(self) -> str:
        return self.keys.signing_key()[0]

    def token(self, request: MintRequest, changes: dict[str, Any]) -> str:
        """A minted token; what may not be minted, and whatever `changes` claims, is signed all the same."""
        if not changes:
            try:
                return self.minter.mint(request).token
            except e.CapabilityError:
                pass
        return self.forged(self.minter._payload(request, request.lifetime_seconds) | changes)

    def forged(self, payload: dict[str, Any], header: dict[str, Any] | None = None) -> str:
        """Signed with the issuer's key, whatever it says."""
        kid, key = self.keys.signing_key()
        return jwt.encode(payload, key, "EdDSA", {"typ": TOKEN_TYPE, "kid": kid} | (header or {}))


class World:
    """Made once for a module; `run` is its event loop's."""

    def __init__(self, directory: Path, run: Callable[..., Any]) -> None:
        self.directory, self.run = directory, run
        self.clock = Clock(NOW + 0.999)  # a new store refuses one-shots of its first second, and waits until it is over
        self.issuer, self.denied, self.retired, self.stranger = (
            Issuer(directory / name, Clock(NOW + 10)) for name in ("issuer", "denied", "retired", "stranger")
        )
        self.reached: list[str] = []
        self.fence, self.policies, self.keys = FixedFence(), PolicyBook(), KeySet(Jwks(keys=()))
        self.standard()
        self.verifier = TokenVerifier(self.keys, ISSUER, self.clock)
        self._seq = 0
        self._serve()

    def standard(self) -> None:
        """The facts that cases start from: open jobs, one token taken back, three known keys of which one is good."""
        open_jobs = {*(holder.job_uid for holder in HOLDERS.values()), OTHER_JOB.job_uid} - {SYSTEM}
        self.fence.attempts = dict.fromkeys(open_jobs, ATTEMPT)
        self.fence.taken_back = {REVOKED_JTI}
        self.policies.current = BUILT_IN
        self.keys.update(self.jwks())

    def _serve(self) -> None:
        self.sink, self.log = StoreSink(self.directory / "audit", self.clock), OperationLog()
        # time stands still, so all refusals of a suite are in one window, and each is to have its record
        self.sink._denials = DenialCounter(self.clock, verbatim_of_one=1_000_000)
        self.control, self.rank = self._gate("operator", self.sink), self._gate("rank/0", self.log)
        for port in PORTS:
            self.gate_of(port).register(recorder(port, self.reached))

    def restart(self) -> None:
        """The operator ends and begins again; what was in memory only is gone."""
        self.stop()
        self.verifier = TokenVerifier(self.keys, ISSUER, self.clock)
        self._serve()
        self.run(self.sink.start())

    def start(self) -> None:
        self.run(self.sink.start())
        self.clock.now = NOW + 10

    def stop(self) -> None:
        self.run(self.sink.close())

    def jwks(self, state: KeyState = KeyState.ACTIVE, use_until: int | None = None, *, deny: bool = False) -> Jwks:
        """Keys of all issuers but the stranger's; that of the good one in this state."""
        good = public_key(self.issuer.keys.signing_key()[1].public_key(), state, use_until)
        retired = public_key(self.retired.keys.signing_key()[1].public_key(), KeyState.RETIRING, int(NOW))
        denied = public_key(self.denied.keys.signing_key()[1].public_key())
        return Jwks(keys=(good, retired, denied), denied=(denied.kid, *([good.kid] if deny else [])))

    def _gate(self, process: str, sink: Any) -> Gate:
        return Gate(process, self.verifier, self.fence, sink, self.clock.moment, self.policies)

    def gate_of(self, port: type[Port]) -> Gate:
        """The gate that serves a port: step calls on a training thread are the rank's, all others the operator's."""
        return self.rank if all(op.sync for op in operations(port).values()) else self.control

    # ---- tokens

    def request(self, op: Operation, holder: Holder) -> MintRequest:
        """What a holder would ask the issuer for, to make this call with."""
        return MintRequest(
            subject=holder.subject,
            audience=op.layer.audience,
            grants=(Grant(op=op.name, res=resource_of(op, holder)),),
            namespace=holder.namespace,
            job=holder.job,
            job_uid=holder.job_uid,
            attempt=holder.attempt,
            one_shot=op.one_shot,
            lifetime_seconds=60 if op.one_shot else 300,
            ranks=holder.ranks,
            pod=holder.pod,
        )

    def token(self, op: Operation, holder: Holder, issuer: Issuer | None = None, **changes: Any) -> str:
        """This holder's token for this call; `changes` are claims that the issuer would not sign so."""
        return (issuer or self.issuer).token(self.request(op, holder), changes)

    @contextmanager
    def minting_at(self, seconds: float) -> Iterator[None]:
        """The issuer mints at another time."""
        self.issuer.clock.now += seconds
        yield
        self.issuer.clock.now -= seconds

    @contextmanager
    def policy_without(self, op: Operation, holder: Holder) -> Iterator[None]:
        """A newer policy in which this kind of holder does not have this right any more."""
        rights = {
            who: {name: right for name, right in held.items() if (who, name) != (holder.role, op.name)}
            for who, held in BUILT_IN.rights.items()
        }
        self.policies.current = BUILT_IN.replace(generation=BUILT_IN.generation + 1, rights=rights)
        yield
        self.policies.current = BUILT_IN

    # ---- calls

    def call(self, op: Operation, token: str | None, resource: str, request: Contract | None = None) -> Any:
        """Through the door that this kind of operation has: what came out, or what was raised."""
        sent = REQUESTS[op.name] if request is None else request
        try:
            if op.sync:
                return self.rank.call_now(token or "", op.name, resource, sent)
            return self.run(self.control.call(token, op.name, resource, sent))
        except (e.KuangchaoError, Reached) as outcome:
            return outcome

    def call_elsewhere(self, op: Operation, token: str | None, resource: str) -> Any:
        """Through the door that does not have it."""
        try:
            if op.sync:
                return self.run(self.control.call(token, op.name, resource, REQUESTS[op.name]))
            return self.rank.call_now(token or "", op.name, resource, REQUESTS[op.name])
        except (e.KuangchaoError, Reached) as outcome:
            return outcome

    def records(self) -> list[AuditRecord]:
        """What was recorded since the last time, in the store and in the operation log."""
        stored = query(self.directory / "audit", AuditQuery(after=self._seq)).records
        self._seq = stored[-1].seq if stored else self._seq
        return [*(item.record for item in stored), *self.log.take_notes()]


def resource_of(op: Operation, holder: Holder) -> str:
    """The holder's own resource of the kind that an operation works on."""
    if op.kind != "audit":
        return f"{holder.namespace}/{op.kind}/{holder.job}"
    return AUDIT_RESOURCE if holder.namespace == CLUSTER else f"{holder.namespace}/audit/records"


@contextmanager
def running(directory: Path) -> Iterator[World]:
    """A world on an event loop of its own."""
    with asyncio.Runner() as runner:
        world = World(directory, runner.run)
        world.start()
        yield world
        world.stop()
