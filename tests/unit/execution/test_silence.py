"""Silence of agents: when it means that they are lost, and when nobody could have heard them."""

from datetime import timedelta

from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution import limits
from tests.unit.execution.world import World, make_job


def test_silent_agent_is_lost_but_not_just_after_the_operator_started() -> None:
    world = World().run()
    world.pass_time(16, beat=False)
    world.turn()
    assert world.assessed[0].report.reason is Reason.AGENT_LOST
    fresh = World().run()
    fresh.pass_time(16, beat=False)
    fresh.started = fresh.now - timedelta(seconds=5)
    fresh.settle()
    assert not fresh.assessed
    fresh.agents.clear()
    fresh.pass_time(56)
    fresh.turn()
    assert fresh.assessed[0].report.reason is Reason.AGENT_LOST


def test_an_agent_whose_end_would_be_seen_at_once_may_be_silent_for_longer() -> None:
    world = World().run()
    world.facts = {"silence_seconds": limits.AGENT_STUCK}
    world.pass_time(120, beat=False)
    world.settle()
    assert not world.assessed
    world.pass_time(1, beat=False)
    world.turn()
    assert world.assessed[0].report.reason is Reason.AGENT_LOST


def stood_still(world: World, seconds: float) -> None:
    """The operator was stopped, or the machine slept: nobody was heard, and this is the first look after it."""
    world.pass_time(seconds, beat=False)
    world.facts = {"deaf_until": world.now}
    world.settle()


def test_who_could_not_be_heard_is_not_lost() -> None:
    world = World().run()
    stood_still(world, 60)
    assert not world.assessed
    world.pass_time(14, beat=False)
    world.settle()
    assert not world.assessed
    world.beat(5)
    world.pass_time(15, beat=False)
    world.settle()
    assert not world.assessed
    world.pass_time(1, beat=False)
    world.turn()
    assert world.assessed[0].report.reason is Reason.AGENT_LOST, "from then on it counts as before"


def test_who_says_nothing_after_a_standstill_either_is_lost() -> None:
    world = World().run()
    stood_still(world, 60)
    world.pass_time(15, beat=False)
    world.turn()
    assert world.assessed[0].report.reason is Reason.AGENT_LOST


def test_ranks_that_ended_together_while_nobody_listened_did_not_end_early() -> None:
    world = World(make_job(command=("train.py",))).run()
    world.beat(0, only=[1], exits={1: 0})
    world.settle()
    stood_still(world, 60)
    assert not world.assessed
    world.beat(0, exits=dict.fromkeys(range(4), 0))
    world.settle()
    assert world.status.phase is Phase.COMPLETE


def test_a_machine_that_slept_is_no_hang() -> None:
    world = World(make_job(training={"steps": 1000})).run(step=10)
    world.beat(11)
    world.pass_time(10)
    world.settle()
    stood_still(world, 100_000)
    world.pass_time(599)
    world.settle()
    assert not world.assessed
    world.pass_time(1)
    world.turn()
    assert world.assessed[0].report.reason is Reason.HUNG


def test_a_drain_whose_time_passed_while_nobody_listened_may_still_commit() -> None:
    world = World().run(step=30)
    world.linger = True
    world.edit(suspend=True)
    world.settle()
    stood_still(world, 1_000)
    world.pass_time(14)
    world.settle()
    assert (world.status.phase, world.status.attempt) == (Phase.SUSPENDING, 1)
    world.pass_time(1)
    world.settle()
    assert (world.status.phase, world.status.attempt) == (Phase.SUSPENDED, 2)


def test_an_agent_that_is_to_join_again_has_time_to_get_the_tokens_of_the_new_attempt() -> None:
    worlds = [World().run() for _ in range(2)]
    for world in worlds:
        world.beat(5, only=[1], exits={1: 1})
        world.settle()
        assert (world.status.attempt, len(world.assessed)) == (2, 1)
    late, back = worlds
    late.pass_time(90, beat=False)
    late.settle()
    assert len(late.assessed) == 1
    late.pass_time(1, beat=False)
    late.turn()
    assert late.assessed[1].report.reason is Reason.AGENT_LOST
    back.beat(5)
    back.pass_time(16, beat=False)
    back.turn()
    assert back.assessed[1].report.reason is Reason.AGENT_LOST, "once it is back it counts as any other"
