"""A token that was good a moment ago and is in the verifier's cache: whatever changes bites at the very next call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import SYSTEM, WORKER_ROLES
from kuangchao_contracts.keys import KeyState
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports.base import Operation
from tests.boundary.authority.faults import GUARDED
from tests.boundary.authority.holders import ATTEMPT, RIGHTS, Holder, holder_for, victim
from tests.boundary.authority.recorders import Reached
from tests.boundary.authority.refusals import assert_refused
from tests.boundary.authority.world import World
from tests.unit.authority.kit import NOW

Change = Callable[[World, Operation, Holder], None]
JTI = "W" * 22


def take_back_job(world: World, op: Operation, holder: Holder) -> None:
    world.fence.job_revoked = lambda uid: uid == holder.job_uid  # type: ignore[method-assign]  # a test's own fence


def narrow(world: World, op: Operation, holder: Holder) -> None:
    rights = {who: {name: r for name, r in held.items() if name != op.name} for who, held in BUILT_IN.rights.items()}
    world.policies.current = BUILT_IN.replace(generation=BUILT_IN.generation + 1, rights=rights)


def attempt(number: int | None) -> Change:
    def change(world: World, op: Operation, holder: Holder) -> None:
        if number is None:
            del world.fence.attempts[holder.job_uid]
        else:
            world.fence.attempts[holder.job_uid] = number

    return change


def key(state: KeyState, use_until: int | None = None, *, deny: bool = False) -> Change:
    return lambda world, op, holder: world.keys.update(world.jwks(state, use_until, deny=deny))


def time(seconds: float) -> Change:
    def change(world: World, op: Operation, holder: Holder) -> None:
        world.clock.now += seconds

    return change


CHANGES: dict[str, tuple[Change, type[e.CapabilityError]]] = {
    "token taken back": (lambda world, op, holder: world.fence.taken_back.add(JTI), e.RevokedTokenError),
    "job taken back": (take_back_job, e.RevokedTokenError),
    "next attempt": (attempt(ATTEMPT + 1), e.StaleEpochError),
    "job closed": (attempt(None), e.StaleEpochError),
    "policy narrowed": (narrow, e.StalePolicyError),
    "key denied": (key(KeyState.ACTIVE, deny=True), e.RevokedKeyError),
    "key retired": (key(KeyState.RETIRING, int(NOW) + 10), e.RetiredKeyError),
    "key gone": (key(KeyState.GONE), e.RetiredKeyError),
    "keys lost": (lambda world, op, holder: world.keys.update(world.jwks().replace(keys=())), e.UnknownKeyError),
    "time is over": (time(305), e.ExpiredSignatureError),
    "clock jumped back": (time(-6), e.ImmatureSignatureError),
}
LEASED = [op for op in GUARDED.values() if not op.one_shot]


def applies(op: Operation, title: str) -> bool:
    holder = holder_for(op, min(RIGHTS[op.name]))
    if title == "job taken back":
        return holder.role in WORKER_ROLES
    return title not in {"next attempt", "job closed"} or not (op.stale_ok or holder.job_uid == SYSTEM)


CASES = [(op, title) for op in LEASED for title in CHANGES if applies(op, title)]


@pytest.fixture
def changing(world: World) -> Iterator[World]:
    """Everything is as before when the case is over."""
    now = world.clock.now
    yield world
    world.clock.now = now
    world.fence.__dict__.pop("job_revoked", None)
    world.standard()


@pytest.mark.parametrize(("op", "title"), CASES, ids=[f"{op.name}-{title}" for op, title in CASES])
def test_change_bites_at_the_next_call(changing: World, op: Operation, title: str) -> None:
    world, holder = changing, holder_for(op, min(RIGHTS[op.name]))
    token = world.token(op, holder, jti=JTI)
    outcomes: list[Any] = [world.call(op, token, victim(op)) for _ in range(2)]
    assert [type(outcome) for outcome in outcomes] == [Reached, Reached]
    world.call(op, None, victim(op))  # a denial is durable, so what was queued before it is stored as well
    world.records()
    world.reached.clear()
    change, expected = CHANGES[title]
    change(world, op, holder)
    assert_refused(world, world.call(op, token, victim(op)), expected, op.name, victim(op), token)


@pytest.mark.parametrize("skew", [*range(-120, 121, 8), -6, -5, -4, 4, 5, 6])
def test_clocks_that_differ(changing: World, skew: int) -> None:
    """Accepted within the leeway of five seconds, on both sides, and nowhere else."""
    world, op = changing, GUARDED["state.restore_point"]
    token = world.token(op, holder_for(op, "agent"))
    end = 300 + 5
    for at in (skew, 300 + skew):
        world.clock.now = NOW + 10 + at
        assert isinstance(world.call(op, token, victim(op)), Reached) == (-5 <= at < end)
    world.reached.clear()
    world.records()
