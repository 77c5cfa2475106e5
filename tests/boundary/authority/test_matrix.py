"""Every operation x every holder x every way to be wrong: refused by its own error, recorded once, not carried out.

Generated from the ports' own declarations; a new operation is covered as soon as `holders.RIGHTS` says who may call it.
"""

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditClass, Decision
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.base import Operation
from tests.boundary.authority.faults import FAULTS, GUARDED, expected, holder_fault, pairs
from tests.boundary.authority.holders import HOLDERS, RIGHTS, holder_for, may, victim
from tests.boundary.authority.recorders import Reached
from tests.boundary.authority.refusals import assert_refused
from tests.boundary.authority.world import World

RIGHTFUL = [(op, name) for op in GUARDED.values() for name in sorted(RIGHTS[op.name])]
WRONGFUL = [(op, name) for op in GUARDED.values() for name in HOLDERS if not may(op, name)]

ELSEWHERE = [(op, name, layer) for op, name in RIGHTFUL for layer in Layer if layer is not op.layer]


def ids(cases: list[tuple[Operation, str]]) -> list[str]:
    return [f"{op.name}-{name}" for op, name in cases]


@pytest.mark.parametrize(
    ("op", "name", "title"), pairs(), ids=[f"{op.name}-{name}-{title}" for op, name, title in pairs()]
)
def test_wrong_call(world: World, op: Operation, name: str, title: str) -> None:
    fault, holder = FAULTS[title], holder_for(op, name)
    token, resource = fault.token(world, op, holder), fault.resource(op)
    with fault.around(world, op, holder):
        outcome = world.call(op, token, resource)
    assert_refused(world, outcome, expected(op, name, fault), op.name, resource, token)


@pytest.mark.parametrize(("op", "name"), WRONGFUL, ids=ids(WRONGFUL))
def test_wrong_holder(world: World, op: Operation, name: str) -> None:
    """A genuine token that grants the call, of somebody who may never make it."""
    token = world.token(op, holder_for(op, name))
    refusal = holder_fault(op, name)
    assert refusal
    assert_refused(world, world.call(op, token, victim(op)), refusal[1], op.name, victim(op), token)


@pytest.mark.parametrize("op", GUARDED.values(), ids=GUARDED)
@pytest.mark.parametrize("token", [None, ""], ids=["none", "empty"])
def test_no_token(world: World, op: Operation, token: str | None) -> None:
    assert_refused(world, world.call(op, token, victim(op)), e.MalformedTokenError, op.name, victim(op), token)


@pytest.mark.parametrize(
    ("op", "name", "audience"), ELSEWHERE, ids=[f"{op.name}-{name}-{layer}" for op, name, layer in ELSEWHERE]
)
def test_replayed_elsewhere(world: World, op: Operation, name: str, audience: Layer) -> None:
    """A token that was stolen from one layer is good for no other."""
    token = world.token(op, holder_for(op, name), aud=audience.audience)
    assert_refused(world, world.call(op, token, victim(op)), e.InvalidAudienceError, op.name, victim(op), token)


@pytest.mark.parametrize("op", OPERATIONS.values(), ids=OPERATIONS)
def test_wrong_door(world: World, op: Operation) -> None:
    """Step calls of a rank do not exist at the operator, and nothing else passes on a training thread."""
    name = min(RIGHTS[op.name]) if op.name in RIGHTS else "agent"
    token = world.token(op, holder_for(op, name))
    outcome = world.call_elsewhere(op, token, victim(op))
    assert_refused(world, outcome, e.UnknownOperationError, op.name, victim(op), token)


ONE_SHOTS = [(op, name) for op, name in RIGHTFUL if op.one_shot]


@pytest.mark.parametrize(("op", "name"), ONE_SHOTS, ids=ids(ONE_SHOTS))
def test_replayed_one_shot(world: World, op: Operation, name: str) -> None:
    token = world.token(op, holder_for(op, name))
    assert isinstance(world.call(op, token, victim(op)), Reached)
    assert (world.reached, len(world.records())) == ([op.name], 2)
    world.reached.clear()
    assert_refused(world, world.call(op, token, victim(op)), e.ReplayedTokenError, op.name, victim(op), token)


@pytest.mark.parametrize(("op", "name"), RIGHTFUL, ids=ids(RIGHTFUL))
def test_right_call(world: World, op: Operation, name: str) -> None:
    """The control: of all these calls only the right one gets through, with a token that the issuer minted."""
    token = world.issuer.minter.mint(world.request(op, holder_for(op, name))).token
    assert isinstance(world.call(op, token, victim(op)), Reached)
    assert world.reached == [op.name]
    world.reached.clear()
    world.call(op, None, victim(op))  # a denial is durable, so what was queued before it is stored as well
    decisions = [record.decision for record in world.records()]
    assert decisions.count(Decision.DENY) == 1
    assert len(decisions) - 1 == {AuditClass.CONTROL: 2, AuditClass.READ: 1, AuditClass.STEP: 0}[op.audit]


@pytest.mark.parametrize("attempt", [1, 2, 4])
@pytest.mark.parametrize("op", [op for op in GUARDED.values() if op.stale_ok], ids=lambda op: op.name)
def test_right_call_of_another_attempt(world: World, op: Operation, attempt: int) -> None:
    """Some operations tell a late worker that it is late."""
    token = world.token(op, holder_for(op, "agent"), att=attempt)
    assert isinstance(world.call(op, token, victim(op)), Reached)
    world.reached.clear()


@pytest.mark.parametrize("op", [o for o in OPERATIONS.values() if o.audit is AuditClass.PUBLIC], ids=lambda op: op.name)
@pytest.mark.parametrize("token", [None, "garbage"])
def test_public_data_needs_no_token(world: World, op: Operation, token: str | None) -> None:
    assert isinstance(world.call(op, token, victim(op)), Reached)
    assert world.records() == []
    world.reached.clear()
