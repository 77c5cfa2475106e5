"""The operator on a real API server, under its own account: the course of a job, and everything it says on the way."""

import base64
import json
from pathlib import Path

import pytest

from tests.api.fakes import RELEASE, Site, eventually
from tests.api.gatecall import GateRefusedError
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import API


def test_a_job_is_planned_admitted_launched_watched_completed_and_reclaimed(site: Site) -> None:
    job = site.job("first", count=2, training={"steps": 10})
    with running(Kubelets(site)):
        pods = job.wait_pods(2)
        status = job.status()
        assert status["planSummary"] == "dp2"
        assert sum(share["devices"] for share in status["allocation"]) == 2
        assert [p["spec"]["plan"]["worldSize"] for p in job.children("parallelplans")] == [2]
        assert len(job.children("services")) == 1
        made = job.object() or {}
        assert "kuangchao.io/cleanup" in made["metadata"]["finalizers"]
        assert not [name for name in made["metadata"].get("annotations", {}) if "kuangchao.io" in name]
        gang = Gang(job, pods)
        gang.join_all()
        assert {reply["launch"]["jobUid"] for reply in gang.launches} == {made["metadata"]["uid"]}
        with running(gang):
            job.wait_phase("Running")
            gang.reach(10)
            job.wait(lambda: job.status().get("progressText") == "10/10", "progress")
            gang.end(0, step=10)
            job.wait_phase("Complete")
        job.wait(lambda: not job.pods() and not job.children("secrets"), "children reclaimed")
        job.wait(lambda: "finalizers" not in (job.object() or {})["metadata"], "finalizer released")
    assert job.status().get("allocation", []) == []
    assert job.holds("Ready")
    assert len(job.children("parallelplans")) == 1, "the plan of a finished job stays for people to read"
    eventually(lambda: site.pool_object().get("status", {}).get("free") == 4, "devices are free again")
    reasons = {event["reason"] for event in site.items("events") if event["involvedObject"]["name"] == "first"}
    assert {"Admitted", "Running", "Succeeded"} <= reasons


def test_tokens_and_trust_are_where_they_belong_and_nowhere_else(site: Site) -> None:
    """1Password/kubernetes-secrets-injector#41, dash0hq/dash0-operator#1214."""
    job = site.job("tokens")
    with running(Kubelets(site)):
        pods = job.wait_pods(2)
        gang = Gang(job, pods)
        token = gang.bundle(pods[0])["tokens"]["agent/kc:execution"]
        assert token.count(".") == 2
        seen = [job.object(), job.pods(), job.children("services"), job.children("parallelplans"), site.items("events"),
                site.items("configmaps"), site.operator.log()]  # fmt: skip
        assert token not in str(seen)
        assert token.split(".")[1] not in str(seen)


def test_a_pool_that_does_not_exist_is_named_and_its_coming_is_noticed(site: Site) -> None:
    site.server.request("DELETE", f"{API}/resourcepools/{site.pool}")
    eventually(lambda: f'"{site.pool}"' not in site.operator.metrics(), "the operator knows that it is gone")
    job = site.job("early")
    condition = job.wait_reason("Stalled", "PoolNotFound")
    assert site.pool in condition["message"]
    assert job.pods() == []
    site.create_pool()
    job.wait_pods(2)


def test_a_job_that_can_never_fit_says_so_with_numbers_and_holds_nothing(site: Site) -> None:
    job = site.job("greedy", count=8)
    condition = job.wait_reason("Stalled", "ExceedsMaxQuota")
    assert "8" in condition["message"]
    assert "4" in condition["message"]
    site.add_node("c", 4)
    job.wait_pods(8)


def test_a_plan_that_cannot_be_is_refused_with_the_reason(site: Site) -> None:
    job = site.job("odd", count=4, training={"globalBatch": 3})
    condition = job.wait_reason("Stalled", "Infeasible")
    assert "3" in condition["message"]
    assert job.children("parallelplans") == []
    assert job.status()["phase"] == "Stalled"


def test_two_jobs_of_one_pool_run_one_after_the_other_and_never_half(site: Site) -> None:
    """volcano-sh/volcano#3373: both want all devices; one gets all, the other none and says whom it waits for."""
    one, two = (site.job(name, count=4) for name in ("one", "two"))
    with running(Kubelets(site)):
        winner = eventually(lambda: next((job for job in (one, two) if job.status().get("allocation")), None), "a gang")
        loser = two if winner is one else one
        winner.wait_pods(4)
        assert winner.name in loser.wait_reason("QuotaReserved", "WaitingForQuota")["message"]
        assert loser.pods() == []
        assert loser.children("secrets") == loser.children("services") == loser.children("parallelplans") == []
        winner.delete()
        loser.wait_pods(4)
        winner.wait_gone()


def test_a_waiting_job_costs_no_writes(site: Site) -> None:
    """ray-project/kuberay#4416, kubernetes-sigs/jobset#535."""
    holder = site.job("holder", count=4)
    with running(Kubelets(site)):
        holder.wait_pods(4)
        waiter = site.job("waiter", count=4)
        waiter.wait_phase("Queued")
        waiter.assert_rests()
        assert "finalizers" not in (waiter.object() or {})["metadata"], "without children it is nobody's to hold back"
        waiter.patch({"suspend": True})
        waiter.wait_phase("Suspended")
        waiter.assert_rests()


def test_suspended_from_the_start_means_nothing_is_made_and_resuming_uses_the_present_spec(site: Site) -> None:
    """kubeflow/mpi-operator#670, and kubeflow/sdk#803: after the resume everything says Running."""
    job = site.job("paused", count=2, suspend=True, training={"globalBatch": 30})
    job.wait_phase("Suspended")
    assert [job.children(kind) for kind in ("pods", "secrets", "services", "parallelplans")] == [[], [], [], []]
    job.patch({"devices": {"count": 3}})
    job.patch({"suspend": False})
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(3))
        gang.join_all()
        assert {reply["launch"]["plan"]["worldSize"] for reply in gang.launches} == {3}
        with running(gang):
            job.wait_phase("Running")
            shown = site.server.kubectl("get", "tjob", "paused", "-n", site.namespace)
            assert shown.splitlines()[1].split()[1] == "Running"
            assert job.condition("Suspended")["status"] == "False"
            assert job.holds("Ready")


def test_suspending_a_running_job_frees_everything_and_starts_no_time_to_live(site: Site) -> None:
    """kubeflow/trainer#2159."""
    job = site.job("held", count=2, ttlSecondsAfterFinished=1)
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            job.patch({"suspend": True})
            job.wait_phase("Suspended")
            for kind in ("pods", "secrets", "services", "parallelplans"):
                job.wait(lambda kind=kind: not job.children(kind), f"{kind} gone")
            eventually(lambda: site.pool_object()["status"]["free"] == 4, "devices are free")
        _live_and_die(site)  # by now a job with the same time to live that has ended is gone
    assert job.object() is not None
    assert "completionTime" not in job.status()


def test_ranks_of_a_suspended_job_keep_their_rights_until_their_pods_are_gone(site: Site) -> None:
    job = site.job("saver", count=2, fault={"terminationSeconds": 600})
    with running(kubelets := Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            kubelets.dead = {pod["spec"]["nodeName"] for pod in job.pods()}  # the pods take their time
            bundle = gang.bundle(gang.pods[0])
            job.patch({"suspend": True})
            job.wait_phase("Suspending")
            job.wait(lambda: all(pod["metadata"].get("deletionTimestamp") for pod in job.pods()), "pods told to end")
            gang.reach(7)
            job.wait(lambda: job.status().get("progress", {}).get("step") == 7, "what the ranks say is still heard")
            assert gang.bundle(gang.pods[0])["attempt"] == bundle["attempt"] == 1, "the Secret is there"
            assert [refusal for refusal in gang.refusals if refusal[0] in (401, 403)] == []
            kubelets.dead = set()
            job.wait_phase("Suspended")
        token = bundle["tokens"]["agent/kc:execution"]
        # the fence follows the stored status, so whoever reads the status may be a moment ahead of it
        job.wait(lambda: gang.refuses(token), "their rights end with the attempt")
    job.wait(lambda: not job.children("secrets"), "tokens deleted")
    assert job.status()["attempt"] == 2


def test_the_time_to_live_deletes_a_finished_job(site: Site) -> None:
    with running(Kubelets(site)):
        _live_and_die(site)


def _live_and_die(site: Site) -> None:
    """A job that completes and is deleted a second later."""
    job = site.job("brief", count=2, ttlSecondsAfterFinished=1, training={"steps": 1})
    gang = Gang(job, job.wait_pods(2))
    gang.join_all()
    gang.end(0, step=1)
    with running(gang):
        job.wait_gone()


def test_a_failing_rank_restarts_the_gang_in_place_with_new_tokens(site: Site) -> None:
    job = site.job("shaky", count=2)
    with running(Kubelets(site)):
        pods = job.wait_pods(2)
        gang = Gang(job, pods)
        gang.join_all()
        old = gang.bundle(pods[0])
        with running(gang):
            job.wait_phase("Running")
            gang.end(1)
            job.wait(lambda: job.status()["attempt"] == 2, "attempt 2")
        assert job.status()["restarts"] == 1
        job.wait(lambda: gang.bundle(pods[0])["attempt"] == 2, "new tokens")
        assert old["attempt"] == 1
        names = {pod["metadata"]["name"] for pod in pods}
        job.wait(lambda: {p["metadata"]["labels"]["kuangchao.io/attempt"] for p in job.pods()} == {"2"}, "pods marked")
        assert {pod["metadata"]["name"] for pod in job.pods()} == names
        again = Gang(job, job.pods())
        again.join_all()
        with running(again):
            job.wait_phase("Running")


@pytest.mark.parametrize("site", [{"a": 2, "b": 2, "c": 2}], indirect=True)
def test_a_lost_node_moves_the_gang_and_costs_no_restart(site: Site) -> None:
    """kubeflow/trainer#959, kubernetes/kubernetes#72226: the pod's phase stays Running; the node's condition counts."""
    job = site.job("moved", count=4, fault={"nodeLostSeconds": 0})
    kubelets = Kubelets(site)
    with running(kubelets):
        gang = Gang(job, job.wait_pods(4))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            lost = job.status()["allocation"][0]["node"]
            kubelets.dead.add(lost)
            site.set_ready(lost.removeprefix(f"{site.pool}-"), ready=False)
            job.wait(lambda: job.status()["incarnation"] == 1, "new incarnation")
        job.wait(
            lambda: (nodes := {share["node"] for share in job.status().get("allocation", ())}) and lost not in nodes,
            "placed on other nodes",
        )
        pods = job.wait(
            lambda: (len(new := [p for p in job.pods() if "-1-" in p["metadata"]["name"][-5:]]) == 4 and new) or None,
            "new pods",
        )
        assert {p["metadata"]["labels"]["kuangchao.io/incarnation"] for p in pods} == {"1"}
    assert (job.status()["restarts"], job.status()["infrastructureRestarts"]) == (0, 1)


def test_governance_may_ask_who_did_what_and_nothing_else(site: Site) -> None:
    job = site.job("watched")
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        wanted = {("strategy.plan", "result"), ("execution.launch", "intent"), ("execution.launch", "result")}
        # a launch is recorded as done some time after its last pod is there
        job.wait(lambda: wanted <= _asked_by_governance(site, gang, "watched"), "the launch is on record")
        lease = _governance_lease(site)
        resource = f"{site.namespace}/jobs/watched"
        with pytest.raises(GateRefusedError, match="401 invalid_token"):
            gang.call_as(lease, "execution.reclaim", resource, {})
    assert len(job.pods()) == 2


def _governance_lease(site: Site) -> str:
    secret = site.server.request("GET", f"/api/v1/namespaces/{RELEASE}/secrets/kuangchao-governance-token")
    return str(json.loads(base64.b64decode(secret["data"]["bundle.json"]))["tokens"]["governance/kc:governance"])


def _asked_by_governance(site: Site, gang: Gang, job: str) -> set[tuple[str, str]]:
    """Operations and stages on record for a job. Nothing while the lease is still that of an operator before ours."""
    try:
        page = gang.call_as(_governance_lease(site), "governance.query", "_cluster/audit/records", {"job": job})
    except GateRefusedError as error:
        assert error.status == 401, error
        return set()
    return {(entry["record"]["op"], entry["record"]["stage"]) for entry in page["records"]}


def test_the_operator_stays_small(site: Site) -> None:
    status = Path(f"/proc/{site.operator.pid}/status").read_text()
    kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert kib < 150 * 1024


def test_metrics_exist_before_anything_happens_and_name_no_job(site: Site) -> None:
    site.job("nameless", count=2).wait_pods(2)
    text = site.operator.metrics()
    for name in ("created", "succeeded", "failed", "deleted"):
        assert f"kuangchao_jobs_{name}_total " in text
    assert 'kuangchao_job_restarts_total{cause="infrastructure"}' in text
    assert f'kuangchao_pool_devices{{pool="{site.pool}",state="reserved"}} 2.0' in text
    assert 'kuangchao_watch_last_event_seconds{kind="Pod"}' in text
    assert "nameless" not in text
