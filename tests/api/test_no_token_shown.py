"""Operator and workers at their most talkative, with calls that fail on the way: no token is shown anywhere.

dash0hq/dash0-operator#1214, external-secrets/kubernetes-external-secrets#639.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.agents import Agent
from tests.api.fakes import Job, Operator, Site
from tests.api.gatecall import GateRefusedError
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import ApiServer

JWT = re.compile(r"eyJ[\w-]+\.eyJ")
WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nprint('trained')"


@pytest.fixture
def loud(control_plane: ApiServer, operator: Operator, tmp_path: Path) -> Iterator[Site]:
    """A site whose operator logs at DEBUG; the session's operator pauses meanwhile."""
    talkative = Operator(control_plane, tmp_path, KUANGCHAO_LOG_LEVEL="DEBUG")
    site = Site(control_plane, talkative, "loud", {"a": 2, "b": 2})
    operator.kill()
    try:
        talkative.start()
        site.settle()
        yield site
    finally:
        site.remove()
        talkative.stop()
        operator.start()


def over_quota(site: Site) -> Job:
    """A job whose second pod the API server refuses at first."""
    path = f"/api/v1/namespaces/{site.namespace}/resourcequotas"
    site.server.request("POST", path, {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}})
    job = site.job("secretive", task=None, command=["-c", WAITS, str(site.operator.directory / "go")])
    job.wait(lambda: "exceeded quota" in json.dumps(job.status().get("conditions", [])), "the API server refuses")
    site.server.request("DELETE", f"{path}/tight")
    return job


def forge(gang: Gang, token: str) -> None:
    """The gate refuses a token that somebody has changed, and one that is a word."""
    head, body, signature = token.split(".")
    for bad in (f"{head}.{body}.{signature[::-1]}", f"{head}.{body}.", "word"):
        with pytest.raises(GateRefusedError, match="401"):
            gang.call_as(bad, "execution.join", "loud/jobs/secretive", {})


def test_no_log_event_status_or_record_shows_a_token(loud: Site, tmp_path: Path) -> None:
    job = over_quota(loud)
    with running(Kubelets(loud)):
        pods = job.wait_pods(2)
        gang = Gang(job, pods)
        token = gang.bundle(pods[0])["tokens"]["agent/kc:execution"]
        forge(gang, token)
        agents = [Agent(job, gang, pod, tmp_path / "pods") for pod in pods]
        try:
            job.wait_phase("Running")
            loud.operator.kill()
            job.wait(lambda: all("heartbeat: " in agent.written() for agent in agents), "an outage")
            loud.operator.start()
            (tmp_path / "go").touch()
            assert [agent.wait() for agent in agents] == [0, 0]
            job.wait_phase("Complete")
            said = [agent.written() for agent in agents]
        finally:
            for agent in agents:
                agent.close()
    kinds = ("trainingjobs", "parallelplans", "pods", "services", "configmaps", "events")
    objects = json.dumps([loud.items(kind) for kind in kinds])
    secret = base64.b64encode(json.dumps({"tokens": {}}).encode()).decode()[:8]
    control = loud.operator.written()
    everything = {"operator, issuer, audit": control, "objects": objects, "metrics": loud.operator.metrics()}
    everything |= {f"agent {number}": text for number, text in enumerate(said)}
    assert JWT.search(token), "the pattern finds a token where there is one"
    assert '"level": "debug"' in control
    assert '"op":"execution.join"' in control, "audit records are among it"
    assert all("DEBUG" in text and "trained" in text for text in said)
    for place, text in everything.items():
        assert JWT.search(text) is None, f"{place}: {JWT.findall(text)[:1]}"
        assert token.split(".")[1] not in text, place
        assert secret not in text, f"{place} shows the bundle as a Secret holds it"
