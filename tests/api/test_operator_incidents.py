"""Incidents that people have reported against other operators, on a real API server: what is charged, freed, said."""

import json
from typing import Any

import pytest

from tests.api.fakes import Job, Site, eventually
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import Object, RefusedError

AT_ONCE = {"maxRestarts": 0, "onRestartLimit": "Fail"}


def pods_of(job: Job, incarnation: int, count: int) -> list[Object]:
    """Wait for all pods of an incarnation, and for the end of all others."""

    def probe() -> list[Object] | None:
        pods = job.pods()
        right = [p for p in pods if p["metadata"]["labels"]["kuangchao.io/incarnation"] == str(incarnation)]
        return pods if len(right) == len(pods) == count else None

    return job.wait(probe, f"{count} pods of incarnation {incarnation}")


def free(site: Site) -> Any:
    """Devices that the pool calls free."""
    return site.pool_object().get("status", {}).get("free")


def told(site: Site, job: str) -> list[Object]:
    """Warnings about a job."""
    return [e for e in site.items("events") if e["involvedObject"]["name"] == job and e["type"] == "Warning"]


def test_an_eviction_uses_no_budget_and_a_crash_does(site: Site) -> None:
    """kubernetes-sigs/jobset, host maintenance example."""
    job = site.job("hosted", fault=AT_ONCE)
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            name = gang.pods[1]["metadata"]["name"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            site.server.request("POST", f"/api/v1/namespaces/{site.namespace}/pods/{name}/eviction", eviction)
            pods = pods_of(job, 1, 2)
        assert (job.status()["restarts"], job.status()["infrastructureRestarts"]) == (0, 1)
        gang = Gang(job, pods)
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            gang.exits[0] = 1
            job.wait_phase("Failed")
    assert job.condition("Failed")["reason"] == "RestartLimitExceeded"


def test_one_failed_rank_ends_its_peers_and_tells_its_code(site: Site) -> None:
    """kubeflow/trainer#1579, ray-project/kuberay#1480: the agent stays up and the other rank would run for an hour."""
    job = site.job("half", fault=AT_ONCE)
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            gang.exits[1] = 7
            job.wait_phase("Failed")
            job.wait(lambda: not job.pods(), "pods of both ranks gone")
    failure = job.status()["firstFailure"]
    assert (failure["rank"], failure["exitCode"]) == (1, 7)
    assert failure["pod"] == gang.pods[1]["metadata"]["name"]
    eventually(lambda: free(site) == 4, "devices are free")


def test_devices_go_to_others_when_the_pods_are_gone_and_not_when_the_job_says_complete(site: Site) -> None:
    """kubernetes-sigs/kueue#1574, kubeflow/trainer#1982."""
    job, kubelets = site.job("winner", count=3, successPolicy="Rank0", training={"globalBatch": 30}), Kubelets(site)
    with running(kubelets):
        gang = Gang(job, job.wait_pods(3))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            kubelets.dead |= {site.node("a"), site.node("b")}
            gang.exits[0] = 0
            job.wait_phase("Complete")
            job.wait(lambda: all("deletionTimestamp" in p["metadata"] for p in job.pods()), "pods told to end")
            heir = site.job("heir")
            assert "1 of 4 free" in heir.wait_reason("QuotaReserved", "WaitingForQuota")["message"]
            assert len(job.pods()) == 3
            assert heir.pods() == []
        kubelets.dead.clear()
        heir.wait_pods(2)


def test_a_deleted_node_without_a_spare_makes_the_gang_wait_as_a_whole(site: Site) -> None:
    """kubernetes-sigs/kueue#6913: no placement is an answer, and never an empty or smaller one."""
    job = site.job("whole", count=4, fault={"nodeLostSeconds": 0})
    path = f"/api/v1/nodes/{site.node('b')}"
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(4))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            node = site.server.request("GET", path)
            site.server.request("DELETE", path)
            job.wait_phase("Queued", "Stalled")
        assert job.status().get("allocation", []) == []
        job.wait(lambda: not job.pods(), "no pod is left over")
        labels = node["metadata"]["labels"]
        site.server.request("POST", "/api/v1/nodes", {"metadata": {"name": site.node("b"), "labels": labels}})
        site.set_ready("b", ready=True)
        pods_of(job, 1, 4)
    assert (job.status()["restarts"], job.status()["infrastructureRestarts"]) == (0, 1)


def test_an_image_that_does_not_come_is_said_at_once_and_ends_at_the_deadline(site: Site) -> None:
    """kubeflow/trainer#2001, kubernetes/kubernetes#101584."""
    job = site.job("imageless")
    waiting = {"reason": "ImagePullBackOff", "message": "example.invalid/x:1: not found"}
    container = {"name": "train", "state": {"waiting": waiting}, "ready": False, "restartCount": 0, "image": "x:1",
                 "imageID": ""}  # fmt: skip
    for pod in job.wait_pods(2):
        path = f"/api/v1/namespaces/{site.namespace}/pods/{pod['metadata']['name']}/status"
        site.server.request(
            "PATCH", path, {"status": {"containerStatuses": [container]}}, "application/merge-patch+json"
        )
    assert "example.invalid/x:1" in job.wait_reason("PodsReady", "ImagePull")["message"]
    with running(Kubelets(site, starting=False)):
        job.patch({"startDeadlineSeconds": 1})  # which is over by now
        job.wait_phase("Failed")
        assert job.condition("Failed")["reason"] == "ImagePull"
        eventually(lambda: free(site) == 4, "devices are free")


def test_a_side_car_that_never_ends_does_not_hold_the_job(site: Site) -> None:
    """kubeflow/trainer#1577, #1183."""
    side = {"spec": {"containers": [{"name": "mesh", "image": "mesh:1"}]}}
    job = site.job("meshed", podOverrides=side, training={"steps": 1})
    with running(kubelets := Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            gang.reach(1)  # a rank that ended before its last step would have failed
            job.wait(lambda: job.status().get("progressText") == "1/1", "the last step is heard of")
            for pod in gang.pods:
                assert [c["name"] for c in pod["spec"]["containers"]] == ["train", "mesh"]
                kubelets.end(pod)
            job.wait_phase("Complete")
        job.wait(lambda: not job.pods(), "pods with their side-cars are gone")


def test_a_gang_of_which_a_pod_ended_before_the_last_step_starts_again_in_new_pods(site: Site) -> None:
    """Whoever has ended joins no new attempt: its peers would wait for it until the start deadline."""
    job = site.job("leaving", training={"steps": 10})
    with running(kubelets := Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            kubelets.end(gang.pods[0], ago=6)
            after = Gang(job, pods_of(job, 1, 2))
        assert job.status()["lastFailure"]["reason"] == "EarlyExit"
        after.join_all()
        with running(after):
            job.wait_phase("Running")
    assert (job.status()["attempt"], job.status()["restarts"]) == (2, 1)


def test_a_rank_that_fails_while_another_pod_leaves_starts_again_in_new_pods(site: Site) -> None:
    """An agent that has said that its ranks ended well is gone soon, though its kubelet takes its time to say so."""
    job = site.job("left", training={"steps": 1})
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            gang.reach(1)
            gang.exits = {1: 0}
            job.wait(lambda: job.status().get("progressText") == "1/1", "the last step is heard of")
            gang.exits = {0: 1, 1: 0}
            pods_of(job, 1, 2)
    assert (job.status()["attempt"], job.status()["restarts"]) == (2, 1)


def test_an_invalid_child_ends_the_job_once_with_the_servers_words(site: Site) -> None:
    """kubeflow/trainer#2351: 422 cannot pass by itself, so it is not tried again."""
    job = site.job("invalid", template={"volumes": [{"name": "Not A Name", "emptyDir": {}}]})
    job.wait_phase("Failed")
    condition = job.condition("Failed")
    assert condition["reason"] == "ChildCreationFailed"
    assert "Not A Name" in condition["message"]
    assert condition["observedGeneration"] == 1
    eventually(lambda: free(site) == 4, "devices are free")
    assert job.status()["attempt"] == 1
    eventually(lambda: told(site, "invalid"), "an Event says so, a moment after the status")
    assert len(told(site, "invalid")) <= 2, json.dumps(told(site, "invalid"))
    with pytest.raises(RefusedError, match="not found"):
        site.server.request("GET", f"/api/v1/namespaces/{site.namespace}/pods/{job.name}")
