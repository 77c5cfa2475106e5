"""`kuangchao run` with real processes: it learns, is reproducible bit for bit, and survives a killed rank."""

import json
import os
import signal
from pathlib import Path

from tests.local.runs import HELD, manifest

EXAMPLE = Path(__file__).parents[2] / "examples/digits.yaml"


def test_the_example_learns_digits(start) -> None:
    run = start(EXAMPLE, "--output", "text")
    assert run.end() == 0, run.err + run.explain()
    lines = run.out.splitlines()
    name, accuracy = lines[-1].split()
    assert name == "accuracy"
    assert float(accuracy) >= 0.95
    assert any("Complete after 300 steps; attempts 1, restarts 0" in line for line in lines)
    audit = next(line for line in lines if line.startswith("audit: "))
    for call in ("strategy.plan", "execution.launch 1", "state.commit_checkpoint 6", "execution.reclaim 1"):
        assert call in audit
    assert len(run.curve()) == 300
    run.assert_nothing_left()


def test_a_killed_rank_leaves_the_curve_unchanged(digits) -> None:
    undisturbed, disturbed = digits["calm"], digits["killed"]
    result = disturbed.result()
    assert (result["attempts"], result["restarts"]) == (2, 1)
    assert result["failure"]["rank"] == 1
    assert len(undisturbed.curve()) == 60
    assert disturbed.curve() == undisturbed.curve()
    assert result["metrics"]["accuracy"] == undisturbed.result()["metrics"]["accuracy"]
    told = [json.loads(line) for path in disturbed.metrics() for line in path.read_text().splitlines()]
    assert {line["metrics"]["rank"] for line in told} == {0.0}, "what rank 0 says is kept, of every step"
    assert result["metrics"]["ownLoss"] == f"{told[-1]['metrics']['ownLoss']:.10g}"
    disturbed.assert_nothing_left()


def test_an_agent_that_is_told_to_end_saves_with_its_gang_and_no_step_is_lost(start) -> None:
    """What the kubelet does to an evicted pod."""
    job = manifest("digits", task="mytask:held", steps=400, fault={"maxRestarts": 0},
                   checkpoint={"everySteps": 1000, "storage": {"claimName": "c"}})  # fmt: skip
    run = start(job, files={"mytask.py": HELD})
    run.until((run.folder / "held").exists)
    (pid,) = (p for p in run.pids("kuangchao_worker.agent") if b"KUANGCHAO_POD_INDEX=1" in environment(p))
    os.kill(pid, signal.SIGTERM)
    (output,) = run.directory.glob("pods/*-1/output.log")
    run.until(lambda: "asked to end" in output.read_text())  # its rank is told in the same moment
    (run.folder / "go").touch()
    assert run.end() == 0, run.err + run.explain()
    result = run.result()
    assert (result["phase"], result["attempts"], result["failure"]["reason"]) == ("Complete", 2, "Evicted")
    assert run.steps() == len(run.curve()) == 400, "no step was done twice"
    run.assert_nothing_left()


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_a_torchrun_script_runs_unmodified(start) -> None:
    command = ["-m", "kuangchao_worker.tasks.torchrun_example", "--steps", "20"]
    run = start(manifest("script", task=None, checkpoint=None, command=command))
    assert run.end() == 0, run.err + run.explain()
    assert run.result()["phase"] == "Complete"
    assert run.result()["steps"] == 20, "what the script reports is shown, the last step for certain"
    run.assert_nothing_left()
