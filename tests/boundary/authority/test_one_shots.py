"""One-shots are good for one decision: also at once, after a restart, and when the store of used ones is lost."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.ports.base import Operation
from kuangchao_contracts.wire import to_reply
from kuangchao_operator.audit.store import AuditStore
from tests.boundary.authority.faults import GUARDED
from tests.boundary.authority.holders import RIGHTS, holder_for, victim
from tests.boundary.authority.recorders import Reached
from tests.boundary.authority.refusals import assert_refused
from tests.boundary.authority.world import REQUESTS, World, running
from tests.unit.authority.kit import NOW

ONE_SHOTS = [op for op in GUARDED.values() if op.one_shot]
EXPECTED = {e.ReplayedTokenError, e.ReplayStoreLostError, e.AuditUnavailableError}
each = pytest.mark.parametrize("op", ONE_SHOTS, ids=lambda op: op.name)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    """Its own for each test: these end and lose their stores."""
    with running(tmp_path) as world:
        yield world


def one_shot(world: World, op: Operation) -> str:
    return world.issuer.minter.mint(world.request(op, holder_for(op, min(RIGHTS[op.name])))).token


@each
def test_raced(world: World, op: Operation) -> None:
    token = one_shot(world, op)

    async def race() -> list[Any]:
        calls = (world.control.call(token, op.name, victim(op), REQUESTS[op.name]) for _ in range(50))
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = [type(outcome) for outcome in world.run(race())]
    assert (outcomes.count(Reached), outcomes.count(e.ReplayedTokenError)) == (1, 49)
    assert world.reached == [op.name]
    assert sum(record.count for record in world.records() if record.reason == "ReplayedToken") == 49


@each
def test_used_again_after_a_restart(world: World, op: Operation) -> None:
    token = one_shot(world, op)
    assert isinstance(world.call(op, token, victim(op)), Reached)
    world.restart()
    world.records()
    world.reached.clear()
    assert_refused(world, world.call(op, token, victim(op)), e.ReplayedTokenError, op.name, victim(op), token)


@each
def test_store_of_used_ones_is_lost(world: World, op: Operation) -> None:
    """A one-shot that the lost store may have seen is refused, a newer one is not."""
    token = one_shot(world, op)
    for path in (world.directory / "audit").glob("*.sqlite*"):
        path.unlink()
    world.clock.now = NOW + 10.999
    world.restart()
    assert_refused(world, world.call(op, token, victim(op)), e.ReplayStoreLostError, op.name, victim(op), token)
    world.clock.now = world.issuer.clock.now = NOW + 11
    assert isinstance(world.call(op, one_shot(world, op), victim(op)), Reached)


@each
def test_store_that_cannot_write(world: World, op: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record, no action; and the one-shot is not used up, for nothing was done under it."""
    token = one_shot(world, op)

    def full(*_: object) -> Any:
        raise e.AuditUnavailableError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(AuditStore, "append", full)
        outcome = world.call(op, token, victim(op))
    assert type(outcome) is e.AuditUnavailableError
    assert to_reply(outcome)[0] == 503
    assert world.reached == []
    assert isinstance(world.call(op, token, victim(op)), Reached)
