"""Delegated tokens narrow their parent, whoever asks for them and through whichever door."""

from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Claims, Grant
from kuangchao_contracts.minting import MintedToken, MintRequest
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.run import ExchangeReply, ExchangeRequest
from kuangchao_operator.gate.frontdoor import FrontDoor
from tests.boundary.authority.holders import HOLDERS, NS
from tests.boundary.authority.refusals import assert_outward
from tests.boundary.authority.world import World
from tests.unit.authority.kit import RESOURCE

EXCHANGE, COMMIT = "interface.exchange", "state.commit_checkpoint"


def lease_request(world: World) -> MintRequest:
    """The front door's lease, which lists what it may be exchanged for."""
    request = world.request(OPERATIONS[EXCHANGE], HOLDERS["agent"])
    return request.replace(grants=(*request.grants, Grant(op=COMMIT, res=RESOURCE)))


@pytest.fixture
def parent(world: World) -> Claims:
    token = world.issuer.minter.mint(lease_request(world)).token
    return world.verifier.verify(token, "kc:interface")[0]


def child(parent: Claims, **changes: Any) -> MintRequest:
    good: dict[str, Any] = {
        "subject": parent.sub,
        "audience": "kc:state",
        "grants": (Grant(op=COMMIT, res=RESOURCE),),
        "namespace": parent.ns,
        "job": parent.job,
        "job_uid": parent.juid,
        "attempt": parent.att,
        "one_shot": True,
        "lifetime_seconds": 60,
        "ranks": parent.ranks,
        "pod": parent.pod,
        "parent": parent,
    }
    return MintRequest(**(good | changes))


WIDER: dict[str, dict[str, Any]] = {
    "another operation": {"grants": (Grant(op="state.restore_point", res=RESOURCE),)},
    "an operation more": {"grants": (Grant(op=COMMIT, res=RESOURCE), Grant(op="state.restore_point", res=RESOURCE))},
    "a later attempt": {"attempt": 4},
    "an older attempt": {"attempt": 2},
    "another incarnation of the job": {"job_uid": "uid-2"},
    "more ranks": {"ranks": "0-7"},
    "other ranks": {"ranks": "4-7"},
    "another pod": {"pod": "w-1", "subject": f"agent:{NS}/digits/w-1"},
    "a pod that is not its own": {"pod_uid": "somebody"},
}


@pytest.mark.parametrize("changes", WIDER.values(), ids=WIDER)
def test_child_that_widens(world: World, parent: Claims, changes: dict[str, Any]) -> None:
    with pytest.raises(e.DelegationError) as caught:
        world.issuer.minter.mint(child(parent, **changes))
    assert_outward(caught.value)


def test_child_that_lives_longer(world: World, parent: Claims) -> None:
    with world.minting_at(250), pytest.raises(e.DelegationError):
        world.issuer.minter.mint(child(parent))


def test_child_of_a_child_and_of_itself(world: World, parent: Claims) -> None:
    narrowed = world.issuer.minter.mint(lease_request(world).replace(parent=parent)).token
    claims, _ = world.verifier.verify(narrowed, "kc:interface")
    assert claims.par == parent.jti
    for looped in (claims, claims.replace(par=claims.jti)):
        with pytest.raises(e.DelegationError):
            world.issuer.minter.mint(child(looped))


class AtOnce:
    """The issuer without its socket."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def mint(self, requests: Any) -> tuple[MintedToken, ...]:
        return tuple(self._world.issuer.minter.mint(request) for request in requests)


@pytest.fixture
def door(world: World) -> FrontDoor:
    fence: Any = world.fence
    return FrontDoor(AtOnce(world), fence, world.clock, tuple, world.policies)


def exchange(world: World, door: FrontDoor, claims: Claims, op: str, resource: str) -> Any:
    capability = Capability(claims=claims, kid="", op=EXCHANGE, resource=RESOURCE, opid="opid")
    try:
        return world.run(door.exchange(capability, ExchangeRequest(op=op, resource=resource)))
    except e.KuangchaoError as error:
        return error


EXCHANGES: dict[str, tuple[str, str]] = {
    "a lease's operation": ("state.restore_point", RESOURCE),
    "a layer's operation": ("execution.launch", RESOURCE),
    "an operation that is none": ("state.nothing", RESOURCE),
    "an operation by wildcard": ("state.*", RESOURCE),
    "itself": (EXCHANGE, RESOURCE),
    "another job": (COMMIT, f"{NS}/jobs/letters"),
    "another tenant": (COMMIT, "team-b/jobs/digits"),
    "everything": (COMMIT, f"{NS}/jobs/*"),
    "a part": (COMMIT, RESOURCE + "/x"),
    "no resource": (COMMIT, "*"),
    "nothing": (COMMIT, ""),
}


@pytest.mark.parametrize(("op", "resource"), EXCHANGES.values(), ids=EXCHANGES)
def test_exchange_gives_nothing_else(world: World, door: FrontDoor, parent: Claims, op: str, resource: str) -> None:
    outcome = exchange(world, door, parent, op, resource)
    assert type(outcome) is e.ExchangeDeniedError
    assert_outward(outcome)


def test_exchange_gives_one_commit(world: World, door: FrontDoor, parent: Claims) -> None:
    reply = exchange(world, door, parent, COMMIT, RESOURCE)
    assert isinstance(reply, ExchangeReply)
    claims, _ = world.verifier.verify(reply.token, "kc:state")
    assert (claims.one, claims.par, claims.cap) == (True, parent.jti, (Grant(op=COMMIT, res=RESOURCE),))
    assert claims.exp <= parent.exp
