"""The commands against a real API server and operator: what people read, and what their changes bring about."""

import json
import os
import subprocess
import sys

import pytest

from tests.api.fakes import ENVIRONMENT, RELEASE, Site, eventually
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import PATIENCE

COMMAND = [sys.executable, "-m", "kuangchao_operator.cli.main"]


def kuangchao(site: Site, *arguments: str, code: int = 0, scoped: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in the site's namespace and check its exit code."""
    scope = ["--namespace", site.namespace] if scoped else []
    environment = {**os.environ, **ENVIRONMENT, "KUBECONFIG": str(site.server.kubeconfig)}
    done = subprocess.run(
        [*COMMAND, *arguments, *scope], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
    )
    assert done.returncode == code, done.stdout + done.stderr + site.operator.log()
    return done


@pytest.mark.parametrize("site", [{"a": 2}], indirect=True)
def test_get_describe_and_why_of_a_waiting_job(site: Site) -> None:
    holder = site.job("holder", count=2)
    holder.wait_phase("Starting")
    waiter = site.job("waiter", count=2, access={"owner": "mei"})
    waiter.wait_phase("Queued")
    rows = kuangchao(site, "get").stdout.splitlines()
    assert rows[0].split() == ["NAME", "STATE", "PLAN", "READY", "RESTARTS", "PROGRESS", "AGE"]
    assert [row.split()[:2] for row in rows[1:]] == [["holder", "Starting"], ["waiter", "Queued"]]
    everywhere = kuangchao(site, "get", "-A", scoped=False).stdout
    assert everywhere.splitlines()[0].startswith("NAMESPACE")
    listed = json.loads(kuangchao(site, "get", "-o", "json").stdout)["items"]
    assert {item["metadata"]["name"] for item in listed} == {"holder", "waiter"}

    text = kuangchao(site, "why", "waiter").stdout
    assert "waiter is Queued: WaitingForQuota" in text
    assert f"pool {site.pool}: needs 2, free 0 of 2" in text
    assert f"held by {site.namespace}/holder: 2" in text
    answer = json.loads(kuangchao(site, "why", "waiter", "-o", "json").stdout)
    assert (answer["need"], answer["free"], answer["position"]) == (2, 0, 1)
    assert answer["holders"] == [{"job": f"{site.namespace}/holder", "devices": 2}]

    described = kuangchao(site, "describe", "holder").stdout
    assert "Plan dp2" in described
    assert "Conditions:" in described
    assert "Owner:      mei" in kuangchao(site, "describe", "waiter").stdout


def test_suspend_resume_and_delete(site: Site) -> None:
    job = site.job("mine")
    with running(Kubelets(site)):
        job.wait_pods(2)
        assert "suspended" in kuangchao(site, "suspend", "mine").stdout
        job.wait_phase("Suspended")
        job.wait(lambda: not job.pods(), "pods gone")
        assert "already suspended" in kuangchao(site, "suspend", "mine").stdout
        assert "resumed" in kuangchao(site, "resume", "mine").stdout
        job.wait_pods(2)
        assert "not suspended" in kuangchao(site, "resume", "mine").stdout
        assert (job.object() or {})["spec"].get("retryGeneration", 0) == 0, "nothing was used up, so nothing is granted"
        assert "deleted" in kuangchao(site, "delete", "mine", "--timeout", f"{PATIENCE:.0f}").stdout
    assert job.object() is None


def test_watch_ends_with_the_job(site: Site) -> None:
    job = site.job("short", training={"steps": 10})
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        gang.end(0, step=10)
        with running(gang):
            done = kuangchao(site, "get", "short", "--watch")
    assert "short: Complete" in done.stdout
    assert "loss 0.5" in done.stdout


def test_watch_of_a_job_that_cannot_be_is_refused(site: Site) -> None:
    site.job("huge", count=4, model={"kind": "measured", "parameters": 10**12})
    done = kuangchao(site, "get", "huge", "--watch", code=3)
    assert "huge: Stalled" in done.stdout


def test_what_is_not_there(site: Site) -> None:
    for command in (
        ["get", "nobody"],
        ["describe", "nobody"],
        ["why", "nobody"],
        ["logs", "nobody"],
        ["resume", "nobody"],
    ):
        assert "nobody" in kuangchao(site, *command, code=1).stderr
    assert "--context" in kuangchao(site, "get", "--context", "elsewhere", code=2).stderr
    job = site.job("pending")
    job.wait_pods(2)
    assert "nearest legal value: 1" in kuangchao(site, "logs", "pending", "--rank", "2", code=2).stderr
    assert "no output" in kuangchao(site, "logs", "pending", "--rank", "1", code=1).stderr


def checked(site: Site) -> dict[str, dict[str, str]]:
    """What the doctor finds, by check."""
    done = kuangchao(site, "doctor", "-o", "json", code=1)
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_doctor_finds_what_is_missing_in_a_cluster(site: Site) -> None:
    # pools of tests before may still be on their way out
    eventually(lambda: checked(site)["pools"]["verdict"] == "ok", lambda: checked(site))
    checks = checked(site)
    assert checks["CRDs"]["verdict"] == "ok"
    assert checks["node descriptors"]["verdict"] == "ok"
    # there are no nodes on which the chart's Deployments could run
    assert checks["operator"]["verdict"] == "missing"
    assert checks["namespace"]["found"] == f"jobs may run in {site.namespace}"
    assert RELEASE in checks["operator"]["mend"]
