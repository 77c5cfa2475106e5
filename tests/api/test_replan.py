"""A gang that reports an out-of-memory starts again under another plan, in a new attempt, with both figures told."""

from kuangchao_contracts.plan import ParallelPlan
from tests.api.fakes import Site
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import Object

MIB = 2**20
MODEL = {"kind": "measured", "parameters": 1_000_000, "activationBytesPerSample": MIB}
OUT_OF_MEMORY = {
    "error": "RuntimeError: DefaultCPUAllocator: can't allocate memory", "errorKind": "OutOfMemory",
    "peakMemoryBytes": 700 * MIB, "memoryLimitBytes": 800 * MIB,
}  # fmt: skip


def test_an_out_of_memory_gives_a_new_plan_in_a_new_attempt_with_both_figures(site: Site) -> None:
    job = site.job(
        "hungry", count=2, model=MODEL, training={"globalBatch": 32, "steps": 10}, parallelism={"sharding": "none"}
    )
    kubelets = Kubelets(site)
    with running(kubelets):
        first = Gang(job, job.wait_pods(2))
        first.join_all()
        before = job.status()["planHash"]
        assert plans(first) == {(before, 16, 1)}
        token = first.bundle(first.pods[0])["tokens"]["agent/kc:execution"]
        with running(first):
            job.wait_phase("Running")
            first.reach(3)
            first.words = OUT_OF_MEMORY
            first.exits = {1: 1}
            job.wait(lambda: job.status().get("outOfMemory"), "the peak is kept")
            job.wait(lambda: first.refuses(token), "what the first attempt holds is worth nothing")
        pods = job.wait(lambda: of_incarnation(job.pods(), 1), "a new gang")
        second = Gang(job, pods)
        job.wait(lambda: all(second.bundle(pod)["attempt"] == 2 for pod in pods), "tokens of the new attempt")
        second.join_all()
        after = job.status()["planHash"]
        assert after != before
        assert plans(second) == {(after, 8, 2)}
        # an ended job keeps the newest alone
        assert {body["spec"]["hash"] for body in job.children("parallelplans")} == {before, after}
        with running(second):
            job.wait_phase("Running")
            second.end(0, step=10)
            job.wait_phase("Complete")
    status = job.status()
    (failure,) = status["outOfMemory"]
    assert (failure["plan"], failure["planHash"]) == ("dp2 micro-batch 16", before)
    assert (failure["measuredBytes"], failure["attempt"], failure["step"]) == (700 * MIB, 1, 3)
    assert 400 * MIB < failure["estimatedBytes"] < 700 * MIB
    told = "measured peak 700.0 MiB where "
    planned = job.condition("Planned")
    assert planned["reason"] == "Replanned"
    assert "dp2 micro-batch 8 in place of dp2 micro-batch 16" in planned["message"]
    assert told in planned["message"]
    assert (status["attempt"], status["restarts"]) == (2, 0)
    events = [e for e in site.items("events") if e["involvedObject"]["name"] == "hungry" and told in e["message"]]
    assert {"OutOfMemory", "Replanned"} <= {event["reason"] for event in events}
    assert "strategy.replan" in site.operator.written()


def plans(gang: Gang) -> set[tuple[str, int, int]]:
    """Hash, micro-batch and accumulation of the plan that each pod was told to run."""
    told = [reply["launch"]["plan"] for reply in gang.launches]
    return {(ParallelPlan.model_validate(plan).hash, plan["microBatch"], plan["accumulationSteps"]) for plan in told}


def of_incarnation(pods: list[Object], incarnation: int) -> list[Object] | None:
    """The two pods of an incarnation once both run."""
    found = [pod for pod in pods if pod["metadata"]["labels"]["kuangchao.io/incarnation"] == str(incarnation)]
    return found if len(found) == 2 and all(pod["status"]["phase"] == "Running" for pod in found) else None
