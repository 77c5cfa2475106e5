"""Faults on real pods and nodes: whatever dies, the loss curve is that of an undisturbed run, bit for bit."""

from tests.e2e.authority import APART, Walk, WalkingJob, flip
from tests.e2e.cluster import KILL_RANK, NAMESPACE, RELEASE_NAMESPACE, eventually, get, items, kc, kubectl, settled

PACE = 0.2
"""Seconds of a first step. Jobs walk until a fault has struck, however slow this machine is."""
Curve = dict[int, str]


def ready(node: str) -> bool:
    """Whether a node says that it is."""
    found = get("nodes", node) or {"status": {}}
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))


def kill_operator() -> None:
    """End the operator's pod without grace; its Deployment makes another."""
    operator = ("-l", "app.kubernetes.io/component=operator")
    kubectl("delete", "pod", "-n", RELEASE_NAMESPACE, *operator, "--grace-period=0", "--force")


def kill_rank(pod: str) -> None:
    """End a rank of a worker pod at once."""
    assert "killed" in kubectl("exec", "-n", NAMESPACE, pod, "--", "python", "-c", KILL_RANK)


def suspend(job: WalkingJob, value: str) -> None:
    """Write spec.suspend."""
    patch = f'{{"spec":{{"suspend":{value}}}}}'
    kubectl("patch", "trainingjob", job.name, "-n", NAMESPACE, "--type=merge", "-p", patch)


def wait_incarnation(job: WalkingJob, number: int) -> None:
    """Wait for new pods, before the job is let run: it must not end by the old ones."""
    eventually(lambda: job.status().get("incarnation") == number, lambda: f"incarnation {number}: {job.status()}")


def test_killed_rank(walk: Walk, reference: Curve) -> None:
    job = walk("killed", PACE)
    job.wait_commit_after(0)
    pod = sorted(p["metadata"]["name"] for p in job.pods())[1]
    kill_rank(pod)
    job.wait_attempt(after=1)
    status = job.finish(reference)
    assert status["restarts"] == 1 and status["attempt"] == 2 and status["incarnation"] == 0
    first = status["firstFailure"]
    assert (first["pod"], first["exitCode"]) == (pod, -9), "not the rank that was killed"


def test_deleted_pod_is_not_charged(walk: Walk, reference: Curve) -> None:
    job = walk("deleted", PACE)
    job.wait_commit_after(0)
    kubectl("delete", "pod", "-n", NAMESPACE, job.pods()[0]["metadata"]["name"], "--grace-period=0", "--force")
    wait_incarnation(job, 1)
    status = job.finish(reference)
    assert status["restarts"] == 0 and status["infrastructureRestarts"] == 1 and status["incarnation"] == 1


def test_crashed_node(walk: Walk, reference: Curve) -> None:
    job = walk("crashed", PACE)
    job.wait_commit_after(0)
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
        status = job.finish(reference)
        assert status["restarts"] == 0 and status["infrastructureRestarts"] == 1
    finally:
        kc("node", "boot", victim.removeprefix("node-"))
        eventually(lambda: ready(victim), f"{victim} is back")
        settled()


def test_killed_operator_in_mid_launch(walk: Walk, reference: Curve) -> None:
    job = walk("orphan", PACE)
    eventually(lambda: job.status().get("attempt") == 1, "admitted", 0.05)
    kill_operator()
    status = job.finish(reference)
    assert status["attempt"] == 1 and status["restarts"] == 0


def test_killed_operator_while_training(walk: Walk, reference: Curve) -> None:
    job = walk("unwatched", PACE)
    job.wait_commit_after(0)
    kill_operator()
    job.wait_step(len(job.curve()) + 2)
    status = job.finish(reference)
    assert status["attempt"] == 1, "training must not need the operator"


def test_partition_between_workers(walk: Walk, reference: Curve) -> None:
    """Kubernetes sees nothing of it: the ranks' own failure ends the attempt, and the job goes on after healing. How
    many attempts that takes is the machine's affair: a step of it may be slower than this short hangSeconds."""
    job = walk("split", PACE, fault={"hangSeconds": 15, "maxRestarts": 1_000})
    job.wait_commit_after(0)
    first, second = (n.removeprefix("node-") for n in sorted(job.nodes()))
    kc("partition", first, second)
    job.wait_attempt(after=1)
    kc("heal")
    job.finish(reference)


def test_suspend_frees_everything_and_resume_goes_on(walk: Walk, reference: Curve) -> None:
    job = walk("paused", PACE)
    job.wait_commit_after(0)
    suspend(job, "true")
    job.wait_phase("Suspended")
    eventually(lambda: not job.pods() and not items("secrets", NAMESPACE, f"kuangchao.io/job={job.name}"), "freed")
    suspend(job, "false")
    job.wait_phase("Running")
    assert "Running" in kubectl("get", "tjob", job.name, "-n", NAMESPACE)
    status = job.finish(reference)
    assert status["restarts"] == 0


def test_bad_checkpoint_is_passed_over(walk: Walk, reference: Curve) -> None:
    job = walk("flipped", PACE, checkpoint={"everySteps": APART})
    directory = job.checkpoint_directory()
    kept = eventually(lambda: len(found := job.status().get("checkpoints", [])) > 1 and found, "two commits")
    newest = max(kept, key=lambda c: c["step"])
    shard = next(
        p for p in sorted((directory / newest["path"]).rglob("*")) if p.is_file() and p.name != "manifest.json"
    )
    flip(shard, shard.stat().st_size // 2)
    assert job.newest() == newest["step"], "too late: the next one is there"
    kill_rank(job.pods()[0]["metadata"]["name"])
    job.wait_attempt(after=1)
    job.finish(reference)
