"""Hangs of scripts: judged only by what they report themselves."""

import pytest

from kuangchao_contracts.api.trainingjob import FaultPolicy
from kuangchao_contracts.reasons import Reason
from tests.unit.execution.world import World, make_job


def make_script(**spec: object) -> World:
    policy = FaultPolicy(hang_seconds=60, first_step_seconds=600)
    return World(make_job(command=("train.py",), fault=policy, **spec))


@pytest.mark.parametrize(
    ("steps", "total", "quiet", "hung"),
    [
        ((), None, 10_000, False),  # it never said a word
        ((5,), None, 59, False),
        ((5,), None, 60, True),
        ((5,), 50, 60, True),
        ((5, 50), 50, 599, False),  # whatever it does after its last step has no steps
        ((5, 50), 50, 600, True),
    ],
)
def test_script_hangs_only_by_its_own_word(steps: tuple[int, ...], total: int | None, quiet: int, hung: bool) -> None:
    world = make_script().run(step=0)
    for step in steps:
        world.pass_time(30)
        world.beat(step, total=total)
        world.settle()
    world.pass_time(quiet)
    world.settle()
    assert bool(world.assessed) is hung
    if hung:
        assert world.assessed[0].report.reason is Reason.HUNG


@pytest.mark.parametrize(("quiet", "hung"), [(599, False), (600, True)])
def test_what_a_script_calls_no_training_has_more_time(quiet: int, hung: bool) -> None:
    world = make_script().run(step=0)
    world.pass_time(30)
    world.beat(5)
    world.settle()
    world.beat(5, section="evaluate")
    world.pass_time(quiet)
    world.beat(5, section="evaluate")
    world.settle()
    assert bool(world.assessed) is hung


def test_the_next_step_ends_that() -> None:
    world = make_script().run(step=0)
    world.pass_time(30)
    world.beat(5)
    world.settle()
    world.beat(5, section="export")
    world.pass_time(300)
    world.beat(6, section="train")
    world.settle()
    assert not world.assessed
    world.pass_time(60)
    world.beat(6, section="train")
    world.settle()
    assert world.assessed[0].report.reason is Reason.HUNG


@pytest.mark.parametrize(("section", "hung"), [("evaluate", False), ("checkpoint", True), ("train", True)])
def test_a_task_that_evaluates_after_its_last_step_is_not_hung(section: str, hung: bool) -> None:
    world = World(make_job(fault=FaultPolicy(hang_seconds=60, first_step_seconds=600))).run(step=0)
    world.pass_time(30)
    world.beat(5)
    world.settle()
    world.pass_time(100)
    world.beat(5, section=section)
    world.settle()
    assert bool(world.assessed) is hung


def test_only_ranks_that_report_can_be_the_slow_ones() -> None:
    world = make_script().run(step=0)
    world.pass_time(30)
    world.beat(7, only=[0])
    world.settle()
    world.pass_time(60)
    world.settle()
    assert world.status.first_failure is not None
    assert world.status.first_failure.rank == 0
