"""T13: clocks of issuer and verifier differ. A token is taken exactly while no leeway is exceeded, and used up once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_operator.audit.verify import verify
from tests.boundary.authority.holders import HOLDERS
from tests.boundary.authority.recorders import Reached
from tests.boundary.authority.world import World, resource_of, running

LEASE, ONE_SHOT = OPERATIONS["state.restore_point"], OPERATIONS["state.commit_checkpoint"]
AGENT = HOLDERS["agent"]
AHEAD = ((0, True), (1, True), (4, True), (5, True), (6, False), (30, False), (60, False), (120, False))
"""Seconds that the issuer is ahead. Five is the leeway."""
BEHIND = {
    LEASE.name: ((1, True), (120, True), (299, True), (304, True), (305, False), (306, False), (400, False)),
    ONE_SHOT.name: ((1, True), (30, True), (59, True), (64, True), (65, False), (66, False), (120, False)),
}
"""Seconds that it is behind: the life of a token, and the leeway on top."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store that was made long before any token here."""
    with running(tmp_path_factory.mktemp("skew")) as world:
        world.clock.now += 1_000
        world.issuer.clock.now += 1_000
        yield world


def use(world: World, op_name: str, token: str) -> object:
    op = OPERATIONS[op_name]
    return world.call(op, token, resource_of(op, AGENT))


@pytest.mark.parametrize("name", [LEASE.name, ONE_SHOT.name])
@pytest.mark.parametrize(("seconds", "good"), AHEAD)
def test_an_issuer_that_is_ahead(world: World, name: str, seconds: int, good: bool) -> None:
    with world.minting_at(seconds):
        token = world.token(OPERATIONS[name], AGENT)
    assert type(use(world, name, token)) is (Reached if good else e.ImmatureSignatureError)


@pytest.mark.parametrize(("name", "seconds", "good"), [(n, *case) for n, cases in BEHIND.items() for case in cases])
def test_an_issuer_that_is_behind(world: World, name: str, seconds: int, good: bool) -> None:
    with world.minting_at(-seconds):
        token = world.token(OPERATIONS[name], AGENT)
    assert type(use(world, name, token)) is (Reached if good else e.ExpiredSignatureError)


def test_a_one_shot_stays_used_up_for_as_long_as_any_leeway_lets_it_pass(world: World) -> None:
    """Its place among the used ones outlives its end by more than the leeway, so that it is never good twice."""
    token = world.token(ONE_SHOT, AGENT)
    assert type(use(world, ONE_SHOT.name, token)) is Reached
    started = world.clock.now
    for later in (1, 60, 64):
        world.clock.now = started + later
        assert type(use(world, ONE_SHOT.name, token)) is e.ReplayedTokenError, later
    world.clock.now = started + 65
    assert type(use(world, ONE_SHOT.name, token)) is e.ExpiredSignatureError
    world.clock.now = started


def test_a_one_shot_of_a_slow_issuer_is_refused_by_a_store_that_is_newer(tmp_path: Path) -> None:
    """It might have been used in the store that was lost: skew makes the rule stricter, never laxer."""
    with running(tmp_path) as world:
        assert world.sink.store.epoch == world.clock.now - 10
        for behind, expected in ((9, Reached), (10, e.ReplayStoreLostError), (30, e.ReplayStoreLostError)):
            with world.minting_at(-behind):
                token = world.token(ONE_SHOT, AGENT)
            assert type(use(world, ONE_SHOT.name, token)) is expected, behind


def test_clocks_that_jump_back_ten_minutes_keep_the_record_in_order(tmp_path: Path) -> None:
    """The issuer's jump makes its tokens worthless until it has caught up; the operator's changes no order."""
    with running(tmp_path) as world:
        world.clock.now += 1_000
        world.issuer.clock.now += 1_000
        with world.minting_at(-600):
            late = world.token(LEASE, AGENT)
        assert type(use(world, LEASE.name, late)) is e.ExpiredSignatureError
        good = world.token(ONE_SHOT, AGENT)
        assert type(use(world, ONE_SHOT.name, good)) is Reached
        world.clock.now -= 600
        assert type(use(world, ONE_SHOT.name, good)) is e.ImmatureSignatureError
        records = world.records()
        assert [record.reason for record in records] == ["ExpiredSignature", "Pending", "Internal", "ImmatureSignature"]
        assert records[-1].ts < records[0].ts
    assert verify(tmp_path / "audit").ok
