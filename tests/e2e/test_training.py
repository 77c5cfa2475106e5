"""The main job on real pods: trains over two nodes, is bit-reproducible, and its audit trail is complete."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import yaml

from tests.e2e.authority import WalkingJob
from tests.e2e.cluster import A_COMMAND, JWT, NAMESPACE, RELEASE_NAMESPACE, audit, eventually, get, items, kubectl
from tests.e2e.conftest import build, user_code_mounted

WALK = {
    "task": "paced:paced",
    "taskArgs": {"pace": "0.5", "hurry": "/checkpoints/renewal.hurry"},
    "training": {"steps": 100_000},
}
A_WHILE = 30.0
"""Seconds. All first tokens of a job are there sooner after its Secret; by a clock that all of the cluster shares."""
SHOW_PROCESSES = """
import glob
for kind in ('environ', 'cmdline'):
    print([open(path, 'rb').read() for path in glob.glob(f'/proc/[0-9]*/{kind}')])
"""


@pytest.fixture(scope="module", autouse=True)
def walking(cluster: None) -> Iterator[WalkingJob]:
    """A job that walks beside all tests of this module: a lease is renewed only after minutes."""
    job = WalkingJob(NAMESPACE, "renewal")
    job.mark.unlink(missing_ok=True)
    job.delete()
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(build(job.name, **WALK, template=user_code_mounted())))
    yield job
    job.delete()
    job.mark.unlink(missing_ok=True)


def test_digits_trains_on_two_nodes(apply, manifest) -> None:
    job = apply(manifest("digits"))
    eventually(lambda: len(job.nodes()) == 2, "its pods are bound to two nodes")
    job.wait_phase("Complete")
    status = job.status()
    assert float(status["progress"]["metrics"]["accuracy"]) >= 0.95
    assert status["restarts"] == 0
    assert status["checkpoints"], "nothing was committed"
    assert status["planSummary"] == "dp2"
    eventually(lambda: not job.pods(), "pods reclaimed")
    job.wait_released()
    assert not items("secrets", NAMESPACE, "kuangchao.io/job=digits"), "tokens outlive the job"
    check_audit(job.object()["metadata"])


def check_audit(metadata: dict[str, Any]) -> None:
    """Every control call of the run is there, each intent with exactly one true result, and the person behind it."""
    # what the API server tells comes in batches
    records = eventually(lambda: records_with_author(metadata["creationTimestamp"]), "the person is named", A_COMMAND)
    records = since_the_last_of_its_name([r for r in records if not r["op"].startswith("kubernetes.")], metadata["uid"])
    ops = Counter(r["op"] for r in records if r["stage"] == "result" and r["decision"] == "allow")
    assert ops["strategy.plan"] >= 1
    assert ops["execution.launch"] >= 1
    assert ops["execution.join"] >= 2
    assert ops["state.commit_checkpoint"] >= 1
    assert ops["execution.reclaim"] == 1
    intents = {r["opid"] for r in records if r["stage"] == "intent"}
    results = Counter(r["opid"] for r in records if r["stage"] == "result")
    assert intents == set(results) and set(results.values()) == {1}
    assert not any(r["reason"] == "Pending" for r in records if r["stage"] == "result")


def since_the_last_of_its_name(records: list[dict[str, Any]], uid: str) -> list[dict[str, Any]]:
    """Without what an earlier job of the name did in the second of creation; the layers' own calls bear no uid."""
    first = next(place for place, r in enumerate(records) if r["jobUid"] == uid)
    return records[max((n for n, r in enumerate(records[:first], 1) if r["op"] == "execution.reclaim"), default=0) :]


def records_with_author(created: str) -> list[dict[str, Any]] | None:
    """All records of the run once its creation is among them."""
    records = [r["record"] for r in audit("--job", "digits", "--namespace", NAMESPACE, "--since", created)]
    named = any(r["op"] == "kubernetes.create" and r["subject"] == "user:admin" for r in records)
    return records if named else None


def test_same_seed_same_curve_other_seed_other_curve(apply, manifest) -> None:
    curves = []
    for name, seed in (("bits-a", 5), ("bits-b", 5), ("bits-c", 6)):
        job = apply(manifest(name, training={"steps": 60, "seed": seed}))
        job.wait_phase("Complete")
        curves.append(job.curve())
    assert len(curves[0]) == 60
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


def test_no_token_in_environment_arguments_or_object(apply, manifest) -> None:
    job = apply(manifest("secretive", training={"steps": 100_000}))
    job.wait_phase("Running")
    pod = job.pods()[0]
    assert not JWT.search(json.dumps(pod))
    name = pod["metadata"]["name"]
    inside = kubectl("exec", "-n", NAMESPACE, name, "--", "python", "-c", SHOW_PROCESSES)
    assert "KUANGCHAO_GATE_URL" in inside and not JWT.search(inside)
    for component in ("kuangchao-operator", "kuangchao-governance"):
        log = kubectl("logs", "-n", RELEASE_NAMESPACE, f"deploy/{component}", "--all-containers", "--tail=-1")
        assert not JWT.search(log)
    assert not JWT.search(kubectl("logs", "-n", NAMESPACE, name))
    secret = items("secrets", NAMESPACE, "kuangchao.io/job=secretive")[0]
    assert len(secret["data"]) == 2, "one key per pod"


def test_torchrun_style_script_runs_unmodified(apply, manifest) -> None:
    job = apply(
        manifest(
            "script",
            task=None,
            taskArgs=None,
            model=None,
            checkpoint=None,
            command=["-m", "kuangchao_worker.tasks.torchrun_example"],
        )
    )
    job.wait_phase("Complete")
    assert job.condition("Unmanaged")["status"] == "True"
    assert job.status()["progressText"] == "20/20", "the script says how many steps it has"
    assert get("trainingjobs", "script", NAMESPACE) is not None


def test_tokens_are_renewed_while_the_job_runs(walking: WalkingJob) -> None:
    walking.wait_phase("Running")
    (secret,) = items("secrets", NAMESPACE, f"kuangchao.io/job={walking.name}")
    launched = datetime.fromisoformat(secret["metadata"]["creationTimestamp"]).timestamp()
    eventually(lambda: min(walking.issued()) > launched + A_WHILE, "all tokens of its pods are newer ones", 5)
    walking.wait_step(len(walking.curve()) + 2)
    assert walking.status()["attempt"] == 1
