"""The operator when things go wrong around it: crashes, refusals, strangers, and deletion in any state and order."""

import itertools
import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kuangchao_contracts import names
from tests.api.fakes import RELEASE, Operator, Site, eventually
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import API, PATIENCE, ApiServer, RefusedError


def test_a_foreign_pod_of_our_name_is_neither_adopted_nor_removed(site: Site) -> None:
    """intelligent-machine-learning/dlrover#1407."""
    job = site.job("twin", count=2, suspend=True)
    job.wait_phase("Suspended")
    uid = (job.object() or {})["metadata"]["uid"]
    name = names.pod_name("twin", uid, 0, 0)
    stranger = {
        "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "other:1"}]},
    }  # fmt: skip
    path = f"/api/v1/namespaces/{site.namespace}/pods"
    made = site.server.request("POST", path, stranger)
    job.patch({"suspend": False})
    job.wait(lambda: name in json.dumps(job.status().get("conditions", [])), "the stranger is named")
    assert site.server.request("GET", f"{path}/{name}")["metadata"]["uid"] == made["metadata"]["uid"]
    site.server.request("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})
    pods = job.wait_pods(2)
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {uid}


def test_a_refused_pod_is_reported_and_not_retried_hot(site: Site) -> None:
    """volcano-sh/volcano#4492: 403 by a namespace quota; the job goes on when there is room."""
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}}
    path = f"/api/v1/namespaces/{site.namespace}/resourcequotas"
    site.server.request("POST", path, quota)
    eventually(lambda: site.server.request("GET", f"{path}/tight").get("status", {}).get("hard"), "quota counted")
    began = time.monotonic()
    job = site.job("crowded", count=2)
    with running(Kubelets(site)):
        job.wait(lambda: "exceeded quota" in json.dumps(job.status().get("conditions", [])), "the quota is named")
        tries = len([e for e in site.items("events") if "exceeded quota" in e.get("message", "")])
        # one at once, then 1 s, 2 s, 4 s ... apart
        assert tries <= 2 + math.log2(1 + time.monotonic() - began)
        site.server.request("DELETE", f"{path}/tight")
        job.wait_pods(2)


def test_a_job_deleted_while_it_starts_leaves_nothing(site: Site) -> None:
    kubelets = Kubelets(site, starting=False)
    with running(kubelets):
        job = site.job("hasty", count=4)
        job.wait(job.pods, "first pod")
        job.delete()
        job.wait_gone()
        eventually(lambda: site.pool_object()["status"]["free"] == 4, "devices are free")


def test_a_job_that_a_tool_has_replaced_can_still_be_deleted(site: Site) -> None:
    """`kubectl replace` makes the finalizer another manager's; taking it off must not depend on who owns it."""
    job = site.job("replaced", count=2)
    with running(Kubelets(site)):
        job.wait_pods(2)
        path = f"/apis/kuangchao.io/v1alpha1/namespaces/{site.namespace}/trainingjobs/replaced?fieldManager=some-tool"

        def replace() -> bool:
            there = job.object() or {}
            there["metadata"].pop("managedFields", None)
            try:
                return bool(site.server.request("PUT", path, there))
            except RefusedError as error:  # the operator has written in between: as kubectl would, read and try again
                assert "has been modified" in str(error)
                return False

        eventually(replace, "the job is replaced")
        assert names.GROUP in json.dumps((job.object() or {})["metadata"]["finalizers"])
        job.delete()
        job.wait_gone()


@pytest.mark.parametrize("order", list(itertools.permutations(("pool", "plan", "job"))), ids="-".join)
def test_pool_plan_and_job_may_be_deleted_in_any_order(site: Site, order: tuple[str, ...]) -> None:
    """Twingate/kubernetes-operator#403: what is gone already is success; a pool in use waits for its jobs."""
    job = site.job("any-order")
    with running(Kubelets(site)):
        job.wait_pods(2)
        eventually(lambda: "finalizers" in site.pool_object()["metadata"], "the pool is held while it is used")
        for step in order:
            if step == "pool":
                site.server.request("DELETE", f"{API}/resourcepools/{site.pool}")
            elif step == "plan":
                for plan in job.children("parallelplans"):
                    _delete_plan(site, plan["metadata"]["name"])
            else:
                job.delete()
        job.wait_gone()
        eventually(lambda: _gone(site), "the pool is gone")


def test_a_pool_in_use_says_whom_its_deletion_waits_for(site: Site) -> None:
    job = site.job("user")
    with running(Kubelets(site)):
        job.wait_pods(2)
        eventually(lambda: "finalizers" in site.pool_object()["metadata"], "the pool is held")
        site.server.request("DELETE", f"{API}/resourcepools/{site.pool}")
        eventually(
            lambda: "deletion waits" in json.dumps(site.pool_object().get("status", {})), "the pool says it waits"
        )
        late = site.job("late")
        assert "being deleted" in late.wait_reason("Stalled", "PoolNotFound")["message"]
        assert job.status()["phase"] not in ("Failed", "Stalled"), "a running job keeps its pool"
        job.delete()
        eventually(lambda: _gone(site), "the pool is gone")


@pytest.fixture
def lone_operator(control_plane: ApiServer, operator: Operator, tmp_path: Path) -> Iterator[Operator]:
    """The session's operator, to be killed and started again by the test; it runs afterwards whatever happened."""
    yield operator
    if not operator.running:
        operator.start()


def test_killed_in_the_middle_of_a_launch_it_finishes_it_once(site: Site, lone_operator: Operator) -> None:
    """volcano-sh/volcano#3373: the decision is in the status, so it stays the same over a restart."""
    kubelets = Kubelets(site)
    with running(kubelets):
        job = site.job("survivor", count=4)
        job.wait(lambda: job.status().get("allocation"), "reserved")
        lone_operator.kill()
        reserved = job.status()["allocation"]
        other = site.job("other", count=2)
        lone_operator.start()
        pods = job.wait_pods(4)
        assert job.status()["allocation"] == reserved
        assert job.status()["attempt"] == 1
        assert len({pod["metadata"]["name"] for pod in pods}) == 4
        other.wait_phase("Queued")
        assert other.pods() == []


def test_a_restart_disturbs_no_running_job(site: Site, lone_operator: Operator) -> None:
    with running(Kubelets(site)):
        job = site.job("steady", count=2, training={"steps": 10})
        pods = job.wait_pods(2)
        gang = Gang(job, pods)
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            assert lone_operator.terminate() == 0
            lone_operator.start()
            gang.reach(7)
            job.wait(lambda: job.status().get("progressText") == "7/10", "progress is seen again")
            assert (job.status()["attempt"], job.status()["phase"]) == (1, "Running")
            uids = {pod["metadata"]["uid"] for pod in pods}
            assert {pod["metadata"]["uid"] for pod in job.pods()} == uids
        assert [refusal for refusal in gang.refusals if refusal[0] in (401, 403)] == []


def test_a_job_that_ended_as_the_operator_died_is_still_cleaned_up(site: Site, lone_operator: Operator) -> None:
    with running(Kubelets(site)):
        job = site.job("orphan", count=2)
        job.wait_pods(2)
        lone_operator.kill()
        job.delete()
        assert "deletionTimestamp" in (job.object() or {})["metadata"], "held back until what it has is freed"
        lone_operator.start()
        job.wait_gone()


def test_without_the_operator_jobs_that_hold_nothing_can_be_deleted(site: Site, lone_operator: Operator) -> None:
    """nolar/kopf#833, #944, #1104: only jobs with children are held back."""
    refused, suspended = site.job("refused", pool="nowhere"), site.job("paused", suspend=True)
    ended = site.job("ended", training={"steps": 1})
    with running(Kubelets(site)):
        gang = Gang(ended, ended.wait_pods(2))
        gang.join_all()
        gang.end(0, step=1)
        with running(gang):
            ended.wait_phase("Complete")
        ended.wait(lambda: "finalizers" not in (ended.object() or {})["metadata"], "finalizer released")
    site.job("holder", count=4).wait_pods(4)
    queued = site.job("queued", count=4)
    refused.wait_reason("Stalled", "PoolNotFound")
    suspended.wait_phase("Suspended")
    queued.wait_phase("Queued")
    lone_operator.kill()
    for job in (refused, suspended, ended, queued):
        job.delete()
        assert job.object() is None, job.name


PEERING = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterkopfpeerings.kopf.dev"},
    "spec": {
        "scope": "Cluster", "group": "kopf.dev",
        "names": {"kind": "ClusterKopfPeering", "plural": "clusterkopfpeerings", "singular": "clusterkopfpeering"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip


@pytest.fixture
def rival(control_plane: ApiServer) -> Iterator[None]:
    """Another operator, of higher priority and alive, in the peering that kopf uses by default."""
    account = f"{RELEASE}:kuangchao-operator"
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(PEERING))
    control_plane.kubectl(
        "wait", "--for=condition=Established", f"--timeout={PATIENCE:.0f}s", "crd/clusterkopfpeerings.kopf.dev"
    )
    control_plane.kubectl("create", "clusterrole", "peers", "--verb=*", "--resource=clusterkopfpeerings.kopf.dev")
    control_plane.kubectl("create", "clusterrolebinding", "peers", "--clusterrole=peers", f"--serviceaccount={account}")
    status = {"laptop": {"priority": 1000, "lifetime": 3600, "lastseen": datetime.now(UTC).isoformat()}}
    peering = {"apiVersion": "kopf.dev/v1", "kind": "ClusterKopfPeering", "metadata": {"name": "default"}}
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps({**peering, "status": status}))
    yield
    for kind in ("clusterrolebinding/peers", "clusterrole/peers", "crd/clusterkopfpeerings.kopf.dev"):
        control_plane.kubectl("delete", kind)


def test_another_operator_in_the_default_peering_pauses_nothing(
    site: Site, lone_operator: Operator, rival: None
) -> None:
    """nolar/kopf#734: all watches fell silent because somebody ran another operator."""
    lone_operator.kill()
    lone_operator.start()
    job = site.job("undisturbed", count=2)
    job.wait_pods(2)
    job.patch({"suspend": True})
    job.wait_phase("Suspended")
    peering = site.server.request("GET", "/apis/kopf.dev/v1/clusterkopfpeerings/default")
    assert list(peering["status"]) == ["laptop"], "ours takes no part, so nothing can pause it"


def _gone(site: Site) -> bool:
    try:
        site.pool_object()
    except RefusedError:
        return True
    return False


def _delete_plan(site: Site, name: str) -> None:
    """As the garbage collector may: people may not."""
    path, collector = f"{API}/namespaces/{site.namespace}/parallelplans/{name}", "generic-garbage-collector"
    try:
        site.server.request("DELETE", path, user=f"system:serviceaccount:kube-system:{collector}")
    except RefusedError as error:
        assert "not found" in str(error), error
