"""Every operation of every port against every way of not being allowed: refused, recorded once, not carried out.

Ports are implemented here from their own declarations, so a new operation is covered as soon as it is declared.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts import policy
from kuangchao_contracts.audit import AuditClass, Decision, Stage
from kuangchao_contracts.base import Contract
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports import OPERATIONS, PORTS
from kuangchao_contracts.ports.base import Operation, Port, operations
from tests.unit.authority.kit import JOB, NS, TOKEN, Clock, FixedFence, MemorySink, Signer

GUARDED = {name: op for name, op in OPERATIONS.items() if op.audit is not AuditClass.PUBLIC}
Case = tuple[Callable[["World"], str | None], type[e.CapabilityError]]


class Done(Exception):  # noqa: N818  # not an error
    """Raised by the dummy ports: the call got through."""


def dummy(port: type[Port]) -> Port:
    """An implementation of a port whose every method says that it was reached."""

    def reached(*_: object) -> Contract:
        raise Done

    async def reached_later(*_: object) -> Contract:
        raise Done

    methods = {op.method: reached if op.sync else reached_later for op in operations(port).values()}
    implementation = type(f"Dummy{port.__name__}", (port,), methods)()
    assert isinstance(implementation, Port)
    return implementation


def empty(request: type[Contract]) -> Contract:
    """A request of the right type without content: authority must not depend on any."""
    return type(request.__name__, (request,), {"audit_text": lambda _: ""}).model_construct()


class World:
    """One operation, a holder that may call it, and the gate in front of it."""

    def __init__(self, op: Operation) -> None:
        self.op, self.signer = op, Signer(Clock())
        self.fence, self.sink = FixedFence(), MemorySink()
        self.gate = Gate("boundary", self.signer.verifier(), self.fence, self.sink)
        for port in PORTS:
            self.gate.register(dummy(port))
        self.resource = f"{NS}/{op.kind}/{JOB}"
        self.request = empty(op.request)

    def holder(self) -> dict[str, Any]:
        role = next(role for role, ops in policy.BUILT_IN.rights.items() if self.op.name in ops)
        if role.startswith("layer:"):
            return {"sub": role, "pod": ..., "ranks": ...}
        return {"sub": f"{role}:{NS}/{JOB}/w-0"}

    def token(self, **changes: Any) -> str:
        now = int(self.signer.clock())
        good = self.holder() | {
            "aud": self.op.layer.audience,
            "cap": [{"op": self.op.name, "res": self.resource}],
            "one": self.op.one_shot,
            "iat": now,
            "exp": now + (60 if self.op.one_shot else 300),
        }
        return self.signer.token(**(good | changes))

    async def call(self, token: str | None) -> None:
        """Through the door that this kind of operation has."""
        if self.op.sync:
            self.gate.call_now(token or "", self.op.name, self.resource, self.request)
        else:
            await self.gate.call(token, self.op.name, self.resource, self.request)


def another(op: Operation) -> str:
    """Another operation of the same layer, or of any."""
    same = [name for name, other in GUARDED.items() if other.layer is op.layer and name != op.name]
    return same[0] if same else next(name for name in GUARDED if name != op.name)


def expired(world: World) -> str:
    then = int(world.signer.clock()) - 400
    return world.token(iat=then, nbf=then, exp=then + (60 if world.op.one_shot else 300))


def forged(world: World) -> str:
    other = World(world.op)
    return other.signer.token(
        header=world.signer.header(), **{k: v for k, v in other.signer.payload().items() if k in {"aud", "cap"}}
    )


def other_tenant(world: World) -> str:
    return world.token(ns="team-b", cap=[{"op": world.op.name, "res": f"team-b/{world.op.kind}/{JOB}"}])


def wrong_resource(world: World) -> str:
    return world.token(cap=[{"op": world.op.name, "res": world.resource + "x"}])


def wrong_subject(world: World) -> str:
    """A genuine, fully granted token of a party to whom policy never gives this operation."""
    for role, ops in policy.BUILT_IN.rights.items():
        if world.op.name not in ops and role != "layer:governance":
            layer = role.startswith("layer:")
            subject = role if layer else f"{role}:{NS}/{JOB}/w-0"
            return world.token(sub=subject, **({"pod": ..., "ranks": ...} if layer else {"pod": "w-0", "ranks": "0"}))
    raise AssertionError("everybody may do this")


CASES: dict[str, Case] = {
    "no token": (lambda _: None, e.MalformedTokenError),
    "expired": (expired, e.ExpiredSignatureError),
    "forged": (forged, e.InvalidSignatureError),
    "wrong audience": (
        lambda w: w.token(aud="kc:resource"),
        e.InvalidAudienceError,
    ),
    "wrong operation": (lambda w: w.token(cap=[{"op": another(w.op), "res": w.resource}]), e.PermissionDeniedError),
    "wrong resource": (wrong_resource, e.PermissionDeniedError),
    "wrong subject": (wrong_subject, e.PermissionDeniedError),
    "stale attempt": (lambda w: w.token(att=2), e.StaleEpochError),
    "later attempt": (lambda w: w.token(att=4), e.FutureEpochError),
    "deleted namesake": (lambda w: w.token(juid="uid-0"), e.StaleEpochError),
    "other tenant": (other_tenant, e.CrossTenantError),
    "future policy": (lambda w: w.token(polv=99), e.StalePolicyError),
    "not yet valid": (lambda w: w.token(nbf=int(w.signer.clock()) + 60), e.ImmatureSignatureError),
}
ATTEMPT_CASES = {"stale attempt", "later attempt", "deleted namesake"}


def matrix() -> list[Any]:
    return [
        pytest.param(op, case, id=f"{name}-{title}")
        for name, op in GUARDED.items()
        for title, case in CASES.items()
        if not (op.stale_ok and title in ATTEMPT_CASES)
    ]


@pytest.mark.parametrize(("op", "case"), matrix())
async def test_refused_recorded_once_and_not_carried_out(op: Operation, case: Case) -> None:
    world = World(op)
    make, expected = case
    token = make(world)
    with pytest.raises(e.CapabilityError) as caught:
        await world.call(token)
    assert type(caught.value) is expected
    assert_one_denial(world, expected, token)


@pytest.mark.parametrize("op", GUARDED.values(), ids=GUARDED)
async def test_the_right_token_gets_through(op: Operation) -> None:
    world = World(op)
    with pytest.raises(Done):
        await world.call(world.token())
    assert not [r for r in world.sink.records if r.decision is Decision.DENY]
    if op.stale_ok:
        with pytest.raises(Done):
            await world.call(world.token(att=2))


@pytest.mark.parametrize("op", [o for o in GUARDED.values() if o.one_shot], ids=lambda o: o.name)
class TestOneShot:
    async def test_replayed(self, op: Operation) -> None:
        world = World(op)
        token = world.token()
        with pytest.raises(Done):
            await world.call(token)
        world.sink.records.clear()
        with pytest.raises(e.ReplayedTokenError):
            await world.call(token)
        assert_one_denial(world, e.ReplayedTokenError, token)

    async def test_lease(self, op: Operation) -> None:
        world = World(op)
        token = world.token(one=False)
        with pytest.raises(e.OneShotRequiredError):
            await world.call(token)
        assert_one_denial(world, e.OneShotRequiredError, token)


@pytest.mark.parametrize("op", [o for o in GUARDED.values() if o.audit is not AuditClass.CONTROL], ids=lambda o: o.name)
async def test_one_shot_where_nothing_would_use_it_up(op: Operation) -> None:
    world = World(op)
    token = world.token(one=True, exp=int(world.signer.clock()) + 60)
    with pytest.raises(e.PermissionDeniedError):
        await world.call(token)
    assert_one_denial(world, e.PermissionDeniedError, token)


@pytest.mark.parametrize("op", [o for n, o in GUARDED.items() if n not in policy.READ_ONLY], ids=lambda o: o.name)
async def test_governance_may_nowhere_act(op: Operation) -> None:
    world = World(op)
    token = world.token(sub="layer:governance", pod=..., ranks=...)
    with pytest.raises(e.SeparationOfDutyError):
        await world.call(token)
    assert_one_denial(world, e.SeparationOfDutyError, token)


@pytest.mark.parametrize("op", [o for o in OPERATIONS.values() if o.audit is AuditClass.PUBLIC], ids=lambda o: o.name)
async def test_public_data_needs_no_token(op: Operation) -> None:
    world = World(op)
    with pytest.raises(Done):
        await world.call(None)
    assert world.sink.records == []


def test_every_guarded_operation_belongs_to_somebody() -> None:
    held = {op for ops in policy.BUILT_IN.rights.values() for op in ops}
    assert held == GUARDED.keys()


def assert_one_denial(world: World, expected: type[e.CapabilityError], token: str | None) -> None:
    (record,) = world.sink.records
    assert (record.stage, record.decision, record.reason) == (Stage.DENY, Decision.DENY, expected.code)
    assert (record.op, record.resource) == (world.op.name, world.resource)
    text = json.dumps(record.wire())
    assert not TOKEN.search(text)
    assert token is None or not any(part in text for part in token.split("."))
