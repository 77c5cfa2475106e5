"""A job whose tokens are taken back rests; one whose tokens cannot be renewed says so before its agents are refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.model import Emit, Launch, RenewTokens, Stop
from kuangchao_operator.shell.memory import JobMemory
from tests.unit.execution.world import World, make_job


class NoRenewal(World):
    """Tokens cannot be minted anew."""

    def _do(self, action: Any) -> None:
        if not isinstance(action, RenewTokens):
            super()._do(action)


def test_a_revoked_job_is_suspended_at_once_and_without_a_drain() -> None:
    world = World().run()
    pods = tuple(sorted(world.pods))
    world.facts["revoked"] = True
    world.settle()
    assert (world.status.phase, world.reason(C.SUSPENDED)) == (Phase.SUSPENDED, Reason.REVOKED)
    assert (world.status.attempt, world.pods, world.claim()) == (2, {}, None)
    assert [(stop.drain, stop.overdue) for stop in world.actions(Stop)] == [(False, pods)], "no time is left to them"
    assert "kuangchao-revocations" in world.condition(C.READY).message
    assert Reason.REVOKED in [event.reason for event in world.actions(Emit)]


def test_it_goes_on_in_a_new_attempt_when_it_is_restored() -> None:
    world = World().run()
    world.facts["revoked"] = True
    world.settle()
    writes = world.writes
    world.pass_time(300)
    world.settle()
    assert world.writes == writes, "it rests"
    world.facts["revoked"] = False
    world.settle()
    assert (world.status.attempt, world.status.incarnation, len(world.pods)) == (2, 1, 2)
    assert world.status.restarts == 0, "no budget is spent"


def test_a_drain_that_goes_on_ends_with_the_revocation() -> None:
    world = World().run()
    world.linger = True
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase is Phase.SUSPENDING
    pods = tuple(sorted(world.pods))
    world.facts["revoked"] = True
    world.settle()
    assert (world.holds(C.SUSPENDED), world.reason(C.SUSPENDED), world.status.attempt) == (True, Reason.REVOKED, 2)
    assert world.actions(Stop)[-1].overdue == pods != (), "what was left of their time is taken"


def test_a_revoked_job_that_waits_leaves_the_queue() -> None:
    world = World(make_job())
    world.facts["revoked"] = True
    world.settle()
    assert (world.status.phase, world.pods, world.status.attempt) == (Phase.SUSPENDED, {}, 0)


def test_restored_but_suspended_by_its_user_it_stays() -> None:
    world = World().run()
    world.facts["revoked"] = True
    world.settle()
    world.edit(suspend=True)
    world.facts["revoked"] = False
    world.settle()
    assert world.status.phase is Phase.SUSPENDED


def test_leases_that_cannot_be_renewed_are_said_once_and_before_they_end() -> None:
    world = NoRenewal()
    world.run()
    for _ in range(4):
        world.pass_time(49)
        world.turn()
    assert world.reason() == Reason.RUNNING
    for _ in range(3):
        world.pass_time(10)
        world.turn()
    assert (world.reason(), world.holds(C.READY)) == (Reason.TOKENS_EXPIRING, True)
    assert [event.reason for event in world.actions(Emit)].count(Reason.TOKENS_EXPIRING) == 1
    world.facts["tokens_minted_at"] = world.now
    world.settle()
    assert world.reason() == Reason.RUNNING


def test_agents_that_are_refused_for_want_of_leases_are_not_lost() -> None:
    """An issuer or API server that is away for ten minutes must not end training that goes on."""
    world = NoRenewal(make_job(fault={"hangSeconds": 400}))
    world.run()
    world.pass_time(230)
    world.turn()
    for _ in range(40):  # refused: nobody hears of a step
        world.pass_time(15, beat=False)
        world.turn()
    assert not world.assessed
    world.facts |= {"tokens_minted_at": world.now, "tokens_late_at": world.now}
    world.pass_time(limits.LEASES_DELIVERED - 1, beat=False)
    world.turn()
    assert not world.assessed, "new leases are on their way"
    world.pass_time(1, beat=False)
    world.turn()
    assert world.assessed[0].report.reason is Reason.AGENT_LOST


def test_agents_are_not_lost_while_new_leases_replace_those_that_were_taken_back() -> None:
    """A kubelet may take a minute to show a pod its new Secret, and until then its agent is refused."""
    world, memory = World().run(), JobMemory()
    memory.done(Launch(attempt=1, incarnation=0), None, world.now)
    memory.outdate_tokens(world.now)
    for wait in (60, limits.LEASES_DELIVERED - 1):
        world.facts |= {name: memory.facts()[name] for name in ("tokens_minted_at", "tokens_late_at")}
        world.pass_time(wait, beat=False)
        world.settle()
        assert not world.assessed
        memory.done(RenewTokens(attempt=1, incarnation=0), None, world.now)
    world.facts |= {"tokens_late_at": world.now - timedelta(seconds=limits.LEASES_DELIVERED)}
    world.turn()
    assert world.assessed[0].report.reason is Reason.AGENT_LOST


def test_late_is_what_is_minted_after_the_old_leases_may_have_ended() -> None:
    memory, start = JobMemory(), datetime(2026, 1, 1, tzinfo=UTC)
    for seconds, late in ((0, None), (90, None), (329, None), (569, 569), (660, 569)):
        memory.done(RenewTokens(attempt=1, incarnation=0), None, start + timedelta(seconds=seconds))
        assert memory.facts()["tokens_late_at"] == (None if late is None else start + timedelta(seconds=late))
