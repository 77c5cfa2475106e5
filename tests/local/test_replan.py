"""A job that runs out of memory goes on under a plan that fits, from where it was, or says both figures."""

import json
from pathlib import Path

import pytest

from kuangchao_worker.layers.execution.data import Batches
from kuangchao_worker.layers.state import rng
from tests.local.hungry import PER_SAMPLE, hungry
from tests.local.runs import manifest
from tests.unit.worker.fakegate import make_plan

STEPS, BATCH, SEED = 12, 32, 7
HUNGRY = {
    "task": "tests.local.hungry:hungry",
    "model": {"kind": "measured", "parameters": 5_313, "activationBytesPerSample": 4_096},
    "training": {"globalBatch": BATCH, "steps": STEPS, "seed": SEED},
    "checkpoint": {"everySteps": 2, "storage": {"claimName": "c"}},
    "fault": {"maxRestarts": 0},
}


def saved(folder: Path) -> dict[str, str]:
    """Arguments of the task: the folder of a test's first run."""
    return {"saved": str(folder / "0")}


def test_a_job_that_ran_out_of_memory_ends_under_a_smaller_plan_with_the_loss_of_one_process(start, tmp_path) -> None:
    run = start(manifest("hungry", **HUNGRY, taskArgs=saved(tmp_path), parallelism={"sharding": "none"}))
    assert run.end() == 0, run.err + run.explain()
    result = run.result()
    assert (result["phase"], result["attempts"], result["plan"]) == ("Complete", 2, "dp2")
    failure = result["failure"]
    assert (failure["reason"], failure["section"], failure["step"]) == ("OutOfMemory", "train", 5)
    status = json.loads((run.directory / "status.json").read_text())["status"]
    (first,) = status["outOfMemory"]
    assert first["plan"] == "dp2 micro-batch 16"
    # the largest of both ranks' figures, of which the failure is one
    assert first["measuredBytes"] >= failure["peakMemoryBytes"] > 16 * PER_SAMPLE > 0
    planned = next(c for c in status["conditions"] if c["type"] == "Planned")
    assert planned["reason"] == "Replanned"
    assert "dp2 micro-batch 8 in place of dp2 micro-batch 16, which ran out of memory at step 5" in planned["message"]
    plan = json.loads((run.directory / "plan.json").read_text())["plan"]
    assert (plan["microBatch"], plan["accumulationSteps"], plan["globalBatch"]) == (8, 2, BATCH)
    assert "measured: peak" in plan["memory"][0]["arithmetic"][-1]
    assert result["audit"]["operations"]["strategy.replan"] == 1
    assert run.attempts() == {step: 1 if step <= 4 else 2 for step in range(1, STEPS + 1)}, "from the last checkpoint"
    assert {step: float.fromhex(loss) for step, loss in run.curve().items()} == pytest.approx(one_process(), rel=1e-9)
    run.assert_nothing_left()


def one_process() -> dict[int, float]:
    """Loss of every step, of a plain loop over the same samples with all the memory that it wants."""
    task = hungry({"fed": ""})
    rng.seed_all(SEED)
    module = task.model()
    optimizer = task.optimizer(module.parameters())
    assert task.scheduler is not None
    scheduler = task.scheduler(optimizer)
    batches = Batches(task.dataset, task.collate, make_plan(1, batch=BATCH), 0, SEED)
    curve = {}
    for step in range(1, STEPS + 1):
        (indices,) = batches.indices(step)
        loss = task.loss(module, batches.load(indices))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        curve[step] = loss.item()
    return curve


def test_under_a_pin_the_job_fails_with_both_figures_and_the_value_that_would_fit(start, tmp_path) -> None:
    pinned = {"devices": {"count": 1}, "training": {"globalBatch": 16, "steps": STEPS}, "taskArgs": saved(tmp_path)}
    run = start(manifest("pinned", **HUNGRY | pinned, parallelism={"microBatch": 16}))
    assert run.end() == 1, run.err + run.explain()
    result = run.result()
    assert (result["phase"], result["reason"], result["attempts"]) == ("Failed", "OutOfMemory", 2)
    assert result["message"].startswith("dp1 micro-batch 16 ran out of memory at step 5: measured peak ")
    assert " were estimated; no other plan is left: " in result["message"]
    assert result["message"].endswith("; nearest legal parallelism.microBatch: 8")
    run.assert_nothing_left()


def test_a_script_that_runs_out_of_memory_fails_with_its_figure(start) -> None:
    job = manifest("script", task=None, checkpoint=None, command=["script.py"])
    run = start(job, files={"script.py": "held = bytearray(1 << 60)\n"})
    assert run.end() == 1, run.err + run.explain()
    result = run.result()
    assert (result["phase"], result["reason"], result["attempts"]) == ("Failed", "OutOfMemory", 1)
    assert result["message"].startswith("measured peak ")
    assert "a command is not planned again" in result["message"]
    run.assert_nothing_left()
