"""Faults on real pods and nodes: whatever dies, the loss curve is that of an undisturbed run, bit for bit."""

import subprocess

import pytest
import yaml

from tests.e2e.cluster import KILL_RANK, RELEASE_NAMESPACE, Job, eventually, get, items, kc, kubectl, settled
from tests.e2e.conftest import NAMESPACE, build

STEPS = 1_500
LONG = {"training": {"steps": STEPS, "seed": 11, "globalBatch": 64}, "checkpoint": {"everySteps": 100}}


def ready(node: str) -> bool:
    """Whether a node says that it is."""
    found = get("nodes", node) or {"status": {}}
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))


def kill_operator() -> None:
    """End the operator's pod without grace; its Deployment makes another."""
    operator = ("-l", "app.kubernetes.io/component=operator")
    kubectl("delete", "pod", "-n", RELEASE_NAMESPACE, *operator, "--grace-period=0", "--force")


@pytest.fixture(scope="module")
def reference(cluster: None) -> dict[int, str]:
    """Loss curve of a run that nothing disturbs."""
    made = build("reference", **LONG)
    job = Job(NAMESPACE, "reference")
    job.delete()
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(made))
    try:
        job.wait_phase("Complete")
        curve = job.curve()
    finally:
        job.delete()
    assert sorted(curve) == list(range(1, STEPS + 1)) or sorted(curve) == list(range(STEPS))
    return curve


def finish(job: Job, reference: dict[int, str]) -> dict:
    job.wait_phase("Complete")
    assert job.curve() == reference
    return job.status()


def test_killed_rank(apply, manifest, reference) -> None:
    job = apply(manifest("killed", **LONG))
    job.wait_step(250)
    pod = sorted(p["metadata"]["name"] for p in job.pods())[1]
    assert "killed" in kubectl("exec", "-n", NAMESPACE, pod, "--", "python", "-c", KILL_RANK)
    status = finish(job, reference)
    assert status["restarts"] == 1 and status["attempt"] == 2 and status["incarnation"] == 0
    first = status["firstFailure"]
    assert (first["pod"], first["exitCode"]) == (pod, -9), "not the rank that was killed"


def test_deleted_pod_is_not_charged(apply, manifest, reference) -> None:
    job = apply(manifest("deleted", **LONG))
    job.wait_step(250)
    kubectl("delete", "pod", "-n", NAMESPACE, job.pods()[0]["metadata"]["name"], "--grace-period=0", "--force")
    status = finish(job, reference)
    assert status["restarts"] == 0 and status["infrastructureRestarts"] == 1 and status["incarnation"] == 1


def test_crashed_node(apply, manifest, reference) -> None:
    job = apply(manifest("crashed", **LONG))
    job.wait_step(250)
    operator_node = items("pods", RELEASE_NAMESPACE, "app.kubernetes.io/component=operator")[0]["spec"]["nodeName"]
    victim = min(job.nodes() - {operator_node})
    kc("node", "crash", victim.removeprefix("node-"))
    try:
        moved = eventually(
            lambda: [p for p in job.pods() if p["metadata"]["labels"]["kuangchao.io/incarnation"] == "1"],
            "new incarnation",
        )
        assert victim not in {
            p["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                "nodeSelectorTerms"
            ][0]["matchExpressions"][0]["values"][0]
            for p in moved
        }
        status = finish(job, reference)
        assert status["restarts"] == 0 and status["infrastructureRestarts"] == 1
    finally:
        kc("node", "boot", victim.removeprefix("node-"))
        eventually(lambda: ready(victim), f"{victim} is back")
        settled()


def test_killed_operator_in_mid_launch(apply, manifest, reference) -> None:
    job = apply(manifest("orphan", **LONG))
    eventually(lambda: job.status().get("attempt") == 1, "admitted", 0.05)
    kill_operator()
    status = finish(job, reference)
    assert status["attempt"] == 1 and status["restarts"] == 0


def test_killed_operator_while_training(apply, manifest, reference) -> None:
    job = apply(manifest("unwatched", **LONG))
    job.wait_step(250)
    kill_operator()
    status = finish(job, reference)
    assert status["attempt"] == 1, "training must not need the operator"


def test_partition_between_workers(apply, manifest, reference) -> None:
    """Kubernetes sees nothing of it: the ranks' own failure ends the attempt, and the job goes on after healing. How
    many attempts that takes is the machine's affair: a step of it may be slower than this short hangSeconds."""
    job = apply(manifest("split", **LONG, fault={"hangSeconds": 15, "maxRestarts": 1_000}))
    job.wait_step(250)
    first, second = (n.removeprefix("node-") for n in sorted(job.nodes()))
    kc("partition", first, second)
    job.wait_attempt(after=1)
    kc("heal")
    finish(job, reference)


def test_suspend_frees_everything_and_resume_goes_on(apply, manifest, reference) -> None:
    job = apply(manifest("paused", **LONG))
    job.wait_step(250)
    kubectl("patch", "trainingjob", "paused", "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    job.wait_phase("Suspended")
    eventually(lambda: not job.pods() and not items("secrets", NAMESPACE, "kuangchao.io/job=paused"), "freed")
    kubectl("patch", "trainingjob", "paused", "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    job.wait_phase("Running")
    assert "Running" in kubectl("get", "tjob", "paused", "-n", NAMESPACE)
    status = finish(job, reference)
    assert status["restarts"] == 0


def test_bad_checkpoint_is_passed_over(apply, manifest, reference) -> None:
    job = apply(manifest("flipped", **LONG))
    job.wait_step(350)
    directory = job.checkpoint_directory()
    kept = eventually(lambda: len(found := job.status().get("checkpoints", [])) > 1 and found, "two commits")
    newest = max(kept, key=lambda c: c["step"])
    shard = next(
        p for p in sorted((directory / newest["path"]).rglob("*")) if p.is_file() and p.name != "manifest.json"
    )
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    subprocess.run(["cp", "/dev/stdin", str(shard)], input=bytes(raw), check=True)
    kubectl("exec", "-n", NAMESPACE, job.pods()[0]["metadata"]["name"], "--", "python", "-c", KILL_RANK)
    finish(job, reference)
