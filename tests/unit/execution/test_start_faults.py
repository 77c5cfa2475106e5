"""Starts that do not come to an end: images, children that are refused, deadlines."""

from typing import Any

import pytest

from kuangchao_contracts.faults import Recovery
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_contracts.run import RankState
from kuangchao_operator.layers.execution import limits
from tests.unit.execution.world import World, make_job, verdict


def test_image_that_cannot_be_pulled_shows_at_once_and_fails_at_the_deadline() -> None:
    """kubeflow/trainer#2001, kubernetes/kubernetes#101584."""
    world = World(make_job(start_deadline_seconds=60))
    world.settle()
    world.change_pod(0, waiting_reason="ImagePullBackOff", waiting_message="example.invalid/x:1")
    world.settle()
    assert world.reason(C.PODS_READY) == Reason.IMAGE_PULL
    assert "example.invalid/x:1" in world.condition(C.READY).message
    world.pass_time(59)
    world.settle()
    assert not world.assessed
    world.verdict = verdict(Recovery.FAIL, Reason.IMAGE_PULL)
    world.pass_time(1)
    world.settle()
    assert (world.status.phase, world.reason(C.FAILED)) == (Phase.FAILED, Reason.IMAGE_PULL)
    assert world.claim() is None


@pytest.mark.parametrize(
    ("waiting", "said", "patience"),
    [
        ("InvalidImageName", "couldn't parse image reference", 0),
        ("ErrImageNeverPull", "not present with pull policy of Never", 0),
        ("ErrImagePull", "rpc error: code = NotFound desc = x:1: not found", limits.IMAGE_REFUSED),
        ("ImagePullBackOff", "pull access denied, repository does not exist", limits.IMAGE_REFUSED),
        ("ErrImagePull", "requested access to the resource is denied", limits.IMAGE_REFUSED),
    ],
)
def test_image_that_no_patience_brings_ends_the_start_early(waiting: str, said: str, patience: float) -> None:
    world = World(make_job(start_deadline_seconds=600))
    world.settle()
    world.verdict = verdict(Recovery.FAIL, Reason.IMAGE_PULL)
    world.change_pod(1, waiting_reason=waiting, waiting_message=said)
    if patience:
        world.pass_time(patience - 1)
        world.settle()
        assert not world.assessed
        world.pass_time(1)
    world.settle()
    assert world.reason(C.FAILED) == Reason.IMAGE_PULL
    assert said in world.assessed[0].report.failures[0].message
    assert world.claim() is None


def test_start_deadline_points_at_the_pod_that_waits() -> None:
    world = World(make_job(start_deadline_seconds=60))
    world.settle()
    world.change_pod(0, phase="Running", ready=True)
    world.change_pod(1, waiting_reason="Unschedulable", waiting_message="untolerated taint")
    world.pass_time(60)
    world.turn()
    report = world.assessed[0].report
    assert report.reason is Reason.START_DEADLINE_EXCEEDED
    assert report.failures[0].pod == world.pod(1).name
    assert "untolerated taint" in report.failures[0].message


@pytest.mark.parametrize("final", [True, False])
def test_refused_child_is_said_at_once_and_ends_the_job_only_when_it_cannot_pass(final: bool) -> None:
    """volcano-sh/volcano#4492, kubeflow/trainer#2351."""
    world = World()
    world.settle()
    world.pods.clear()
    world.facts |= {"launched": None, "child_error": "pods is forbidden: exceeded quota", "child_error_final": final}
    world.turn()
    if final:
        assert world.assessed[0].report.reason is Reason.CHILD_CREATION_FAILED
    else:
        assert (world.reason(), world.assessed) == (Reason.CHILD_CREATION_FAILED, [])
        assert "exceeded quota" in world.condition(C.READY).message


def test_ranks_that_never_leave_their_start_hit_the_deadline_of_the_new_attempt_too() -> None:
    world = World(make_job(start_deadline_seconds=60)).run()
    world.pass_time(1000)
    world.beat(1, exits={0: -9})
    world.settle()
    world.beat(0, RankState.STARTING)
    world.pass_time(59)
    world.settle()
    assert len(world.assessed) == 1
    world.pass_time(1)
    world.turn()
    assert world.assessed[1].report.reason is Reason.START_DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "change",
    [
        {"waiting_message": 'Back-off pulling image "registry/not-found:1": i/o timeout'},
        {"waiting_message": "mkdir /var/lib/x: permission denied"},
        {"waiting_message": "not found", "sandbox_at": True},
    ],
)
def test_image_that_may_still_come_has_the_whole_start_deadline(change: dict[str, Any]) -> None:
    """A refusal counts from when the kubelet could begin to pull; what an image is called says nothing."""
    world = World(make_job(start_deadline_seconds=600))
    world.settle()
    world.pass_time(limits.IMAGE_REFUSED + 1)
    if "sandbox_at" in change:
        change = {**change, "sandbox_at": world.now}
    world.change_pod(0, waiting_reason="ImagePullBackOff", **change)
    world.settle()
    assert not world.assessed


def test_refused_image_of_a_job_that_has_run_is_asked_for_until_the_deadline() -> None:
    world = World(make_job(start_deadline_seconds=600)).run(step=5)
    world.verdict = verdict(Recovery.NEW_PODS, Reason.POD_LOST, charged=False)
    world.lose_pod(0)
    world.settle()
    seen = len(world.assessed)
    world.change_pod(0, waiting_reason="ImagePullBackOff", waiting_message="unauthorized")
    world.pass_time(limits.IMAGE_REFUSED + 1)
    world.settle()
    assert len(world.assessed) == seen
