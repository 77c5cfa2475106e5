"""A pod's body becomes the few facts that decisions are made from."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kuangchao_operator.kube.podfacts import pod_record
from kuangchao_operator.layers.execution.model import PodFact
from tests.unit.kube.bodies import UID, pod


def fact(**status: Any) -> PodFact:
    record = pod_record(pod(**status))
    assert record is not None
    return record.fact


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def test_identity_comes_from_labels_and_owner() -> None:
    record = pod_record(pod(index=3, incarnation=2))
    assert record is not None
    assert (record.job, record.job_uid, record.namespace) == ("j", UID, "ns")
    assert (record.fact.index, record.fact.incarnation, record.fact.attempt) == (3, 2, 1)
    assert record.fact.owned
    assert record.fact.node == "node-1"


def test_a_pod_with_our_labels_and_another_owner_is_not_ours() -> None:
    record = pod_record(pod(owner="somebody-else"))
    assert record is not None
    assert not record.fact.owned


@pytest.mark.parametrize("index", ["", "x", "-1", "1" * 10])
def test_a_pod_without_our_labels_is_ignored(index: str) -> None:
    body = pod()
    body["metadata"]["labels"]["kuangchao.io/pod-index"] = index
    assert pod_record(body) is None


def test_the_end_of_a_side_car_is_not_the_end_of_training() -> None:
    seen = fact(
        containerStatuses=[
            container("side-car", terminated={"exitCode": 1, "reason": "Error"}),
            container("train", running={}),
        ]
    )
    assert (seen.exit_code, seen.exit_reason) == (None, "")


def test_the_end_of_training_while_its_side_car_runs_on() -> None:
    """kubeflow/trainer#1577, #1183."""
    ended = {"exitCode": 7, "reason": "Error", "message": "[]", "finishedAt": "2026-01-01T00:00:05Z"}
    seen = fact(containerStatuses=[container("train", terminated=ended), container("side-car", running={})])
    assert (seen.exit_code, seen.termination_message) == (7, "[]")
    assert seen.finished_at == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_out_of_memory_is_told_by_the_kubelet() -> None:
    seen = fact(containerStatuses=[container("train", terminated={"exitCode": 137, "reason": "OOMKilled"})])
    assert (seen.exit_code, seen.exit_reason) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("containers", "limit"),
    [
        ([{"name": "train", "resources": {"limits": {"memory": "1Gi"}}}], 2**30),
        ([{"name": "train"}, {"name": "side-car", "resources": {"limits": {"memory": "1Gi"}}}], None),
        ([{"name": "train", "resources": {}}], None),
    ],
    ids=["limited", "only the side-car", "not limited"],
)
def test_the_limit_of_the_training_container_is_known(containers: list[dict[str, Any]], limit: int | None) -> None:
    body = pod()
    body["spec"]["containers"] = containers
    record = pod_record(body)
    assert record is not None
    assert record.fact.memory_limit_bytes == limit


def test_an_evicted_pod_has_no_container_state_but_a_reason() -> None:
    seen = fact(phase="Failed", reason="Evicted", message="low on memory")
    assert (seen.phase, seen.exit_reason, seen.termination_message) == ("Failed", "Evicted", "low on memory")


def test_a_disruption_is_a_condition() -> None:
    """kubernetes-sigs/jobset, host maintenance example."""
    assert fact(conditions=[{"type": "DisruptionTarget", "status": "True"}]).disrupted
    assert not fact(conditions=[{"type": "DisruptionTarget", "status": "False"}]).disrupted


def test_readiness_is_the_condition_not_the_phase() -> None:
    assert not fact(phase="Running").ready
    assert fact(conditions=[{"type": "Ready", "status": "True"}]).ready


def test_why_an_image_does_not_come() -> None:
    """kubeflow/trainer#2001."""
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    seen = fact(phase="Pending", containerStatuses=[container("train", waiting=waiting)])
    assert (seen.waiting_reason, seen.waiting_message) == ("ImagePullBackOff", "no such image")


def test_an_init_container_that_waits_says_more_than_the_container_behind_it() -> None:
    seen = fact(
        phase="Pending",
        containerStatuses=[container("train", waiting={"reason": "PodInitializing"})],
        initContainerStatuses=[container("setup", waiting={"reason": "ErrImagePull", "message": "m"})],
    )
    assert seen.waiting_reason == "ErrImagePull"


def test_what_the_scheduler_says() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    seen = fact(phase="Pending", conditions=[condition])
    assert (seen.waiting_reason, seen.waiting_message) == ("Unschedulable", "0/3 nodes")


def test_a_long_message_is_cut() -> None:
    ended = {"exitCode": 1, "message": "x" * 10_000}
    assert len(fact(containerStatuses=[container("train", terminated=ended)]).termination_message) == 4096


def test_a_pod_that_is_deleted_has_until_its_deletion_timestamp() -> None:
    body = pod()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    record = pod_record(body)
    assert record is not None
    assert record.fact.deleting
    assert record.fact.ends_by == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


def test_a_pod_that_its_kubelet_evicts_has_its_grace_period() -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = pod(conditions=[disruption])
    body["spec"]["terminationGracePeriodSeconds"] = 45
    record = pod_record(body)
    assert record is not None
    assert (record.fact.deleting, record.fact.disrupted) == (False, True)
    assert record.fact.ends_by == datetime(2026, 1, 1, 0, 0, 45, tzinfo=UTC)
    assert fact(conditions=[{**disruption, "status": "False"}]).ends_by is None
