"""Ranks that went on with leases nobody renewed: the job says so, once by an event and then in its condition."""

from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution.model import Emit
from tests.unit.execution.world import World


def say_overdue(world: World, pod: int, seconds: int) -> None:
    """What an agent's next heartbeat says when it is heard again after an outage."""
    agent = world.agents[pod]
    heartbeat = agent.heartbeat.replace(lease_overdue_seconds=seconds)
    world.agents[pod] = agent.model_copy(update={"heartbeat": heartbeat})


def events(world: World) -> list[Emit]:
    return [event for event in world.actions(Emit) if event.reason is Reason.LEASE_OVERDUE]


def test_an_overdue_lease_is_told_once_and_stays_in_the_condition() -> None:
    world = World().run()
    assert (world.reason(), events(world)) == (Reason.RUNNING, [])
    say_overdue(world, 1, 412)
    world.settle()
    world.settle()
    assert (world.holds(C.READY), world.reason()) == (True, Reason.LEASE_OVERDUE)
    assert "ranks of pods 1 acted on leases that had expired, for up to 412 s" in world.condition(C.READY).message
    (event,) = events(world)
    assert event.type == "Warning"


def test_the_next_attempt_begins_with_a_clean_slate() -> None:
    world = World().run()
    say_overdue(world, 0, 5)
    world.settle()
    world.beat(5, exits={0: 1})
    world.settle()
    world.run()
    assert world.status.attempt == 2
    assert world.reason() == Reason.RUNNING
