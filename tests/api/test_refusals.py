"""Jobs that cannot run as they are: the object says why at once, holds no device, has no child, and goes on when the
cause is gone."""

import json
from typing import Any

import pytest

from tests.api.fakes import Job, Site
from tests.api.kubelets import Kubelets, running
from tests.api.server import API

CHILDREN = ("pods", "secrets", "services", "parallelplans")
STORAGE = {"everySteps": 10, "storage": {"claimName": "checkpoints", "path": "runs/one"}}


def make_claim(site: Site) -> None:
    """A PersistentVolumeClaim of the name that STORAGE gives."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/api/v1/namespaces/{site.namespace}/persistentvolumeclaims"
    site.server.request("POST", path, {"metadata": {"name": "checkpoints"}, "spec": spec})


def assert_holds_nothing(job: Job) -> None:
    """No device, no child, no finalizer."""
    assert job.status().get("allocation", []) == []
    assert {kind: job.children(kind) for kind in CHILDREN} == {kind: [] for kind in CHILDREN}
    assert "finalizers" not in (job.object() or {})["metadata"]


def test_a_claim_that_is_missing_is_named_and_its_coming_is_noticed(site: Site) -> None:
    job = site.job("unstored", checkpoint=STORAGE)
    message = job.wait_reason("Stalled", "StorageNotFound")["message"]
    assert "spec.checkpoint.storage.claimName='checkpoints'" in message
    assert_holds_nothing(job)
    site.job("greedy", count=8).wait_reason("Stalled", "ExceedsMaxQuota")  # by now the first job rests
    make_claim(site)
    job.wait_pods(2)


def test_two_jobs_never_write_to_one_checkpoint_directory(site: Site) -> None:
    make_claim(site)
    first = site.job("first", checkpoint=STORAGE)
    with running(Kubelets(site)):
        first.wait_pods(2)
        second = site.job("second", checkpoint=STORAGE)
        message = second.wait_reason("Stalled", "CheckpointPathInUse")["message"]
        assert "'runs/one'" in message
        assert "first" in message
        assert_holds_nothing(second)
        first.delete()
        second.wait_pods(2)


def test_an_older_job_does_not_take_over_the_directory_of_one_that_runs(site: Site) -> None:
    """The one that is there first keeps it, whichever was created first."""
    make_claim(site)
    elder = site.job("elder", suspend=True)
    elder.wait_phase("Suspended")
    runner = site.job("runner", checkpoint=STORAGE)
    with running(Kubelets(site)):
        runner.wait_pods(2)
        elder.patch({"checkpoint": STORAGE, "suspend": False})
        assert "runner" in elder.wait_reason("Stalled", "CheckpointPathInUse")["message"]
        assert runner.status()["phase"] in ("Admitted", "Starting")
        assert_holds_nothing(elder)


def test_the_least_that_the_schema_accepts_runs_under_a_generated_name(site: Site) -> None:
    """kubernetes-sigs/jobset#394."""
    manifest = {
        "apiVersion": "kuangchao.io/v1alpha1", "kind": "TrainingJob", "metadata": {"generateName": "demo-"},
        "spec": {"pool": site.pool, "task": "tasks:train", "devices": {"count": 1}},
    }  # fmt: skip
    made = site.server.request("POST", f"{API}/namespaces/{site.namespace}/trainingjobs", manifest)
    job = Job(site, made["metadata"]["name"])
    (pod,) = job.wait_pods(1)
    assert pod["metadata"]["name"].startswith(made["metadata"]["name"])


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"count": 5}, "ExceedsMaxQuota", ("spec.devices.count=5", "at most 4 devices")),
        ({"count": 2, "priority": "debug"}, "ExceedsMaxQuota", ("spec.devices.count=2", "at most 0 devices", "20 %")),
        ({"task": None, "command": ["torchrun", "train.py"]}, "InvalidSpec", ("spec.command", "['train.py']")),
        ({"podOverrides": {"spec": {"hostNetwork": True}}}, "InvalidSpec", ("podOverrides.spec.hostNetwork",)),
        ({"count": 4, "training": {"globalBatch": 3}}, "Infeasible", ("3",)),
    ],
    ids=["too many", "debug share", "nested launcher", "override", "batch"],
)
def test_what_cannot_run_says_why_and_costs_nothing(
    site: Site, spec: dict[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    """volcano-sh/volcano#1330."""
    job = site.job("refused", **spec)
    condition = job.wait_reason("Stalled", reason)
    assert all(word in condition["message"] for word in words), condition
    assert condition["observedGeneration"] == 1
    assert job.status()["phase"] == "Stalled"
    assert_holds_nothing(job)
    job.assert_rests()
    assert json.dumps(site.items("events")).count(reason) <= 2
