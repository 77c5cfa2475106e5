"""Jobs that fail, end early or are ended: the cause is told, the exit code fits, nothing is left."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kuangchao_operator.local.processes import strays
from tests.local.runs import PATIENCE, Run, manifest

BROKEN = """
from kuangchao_worker.tasks.digits import digits

def broken(args):
    raise ValueError("no such label: 11")
"""
EARLY = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(0)\ntime.sleep(600)\n"
SLEEPING = "import time\ntime.sleep(600)\n"
FAILING = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(600)\n"


@pytest.fixture(scope="module", autouse=True)
def left_early(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A script that one rank leaves. It takes half a minute until that is a fault: the other tests run meanwhile."""
    run = Run(tmp_path_factory.mktemp("early"), scripted(EARLY))
    yield run
    run.close()


def scripted(script: str) -> dict[str, Any]:
    return manifest("script", task=None, checkpoint=None, command=["-c", script], fault={"maxRestarts": 0})


def test_an_exception_of_the_task_fails_the_job_with_its_message(start) -> None:
    run = start(manifest("broken", task="mytask:broken", checkpoint=None), files={"mytask.py": BROKEN})
    assert run.end() == 1, run.explain()
    result = run.result()
    assert (result["phase"], result["reason"]) == ("Failed", "UserError")
    assert "no such label: 11" in result["failure"]["message"]
    assert result["attempts"] == 2, "the same fault twice at the same step is not tried a third time"
    run.assert_nothing_left()


UNRULED = """
from dataclasses import replace

from torch import nn

from kuangchao_worker.tasks.mlp import mlp

def network():
    return nn.Sequential(nn.Linear(16, 8), nn.Softmax(-1), nn.Linear(8, 1))

def unruled(args):
    return replace(mlp(args), model=network)
"""


def test_rules_that_the_task_does_not_have_end_the_job_at_once_and_are_named(start) -> None:
    """Whatever the restart budget: the same plan would be refused again. The planner knows nothing of this model, so
    it is for the workers to say."""
    spec = {"task": "mytask:unruled", "model": None, "parallelism": {"tensor": 2}}
    spec |= {"devices": {"count": 2, "perPod": 2}, "training": {"globalBatch": 64}}
    run = start(manifest("unruled", checkpoint=None, fault={"maxRestarts": 3}, **spec), files={"mytask.py": UNRULED})
    assert run.end() == 3, run.explain()
    result = run.result()
    assert (result["phase"], result["reason"], result["attempts"]) == ("Failed", "InvalidSpec", 1)
    assert "plan.tensor=2: the task has no rules.tensor, and its model shows none" in result["failure"]["message"]
    assert "0: _softmax: it takes all of them together" in result["failure"]["message"]
    run.assert_nothing_left()


def test_a_missing_task_is_named(start) -> None:
    run = start(manifest("absent", task="no_such_module:task", checkpoint=None), "-o", "text")
    assert run.end() == 1, run.explain()
    assert "no_such_module" in run.out
    assert "TaskNotFound" in run.out


def test_ctrl_c_saves_and_leaves_nothing_and_another_run_goes_on(start, digits) -> None:
    training = {"globalBatch": 64, "steps": 100_000, "seed": 7}
    run = start(manifest("digits", training=training))
    run.until(lambda: run.steps() >= 5)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.err + run.explain()
    result = run.result()
    assert (result["interrupted"], result["phase"]) == (True, "Suspended")
    assert result["failure"] is None, "ending a run is no fault"
    assert result["checkpoints"], "the ranks save before they end"
    assert result["checkpoints"][-1]["step"] == result["steps"] == run.steps(), "nothing of the work is lost"
    run.assert_nothing_left()
    before = {path: path.stat().st_mtime_ns for path in run.directory.rglob("*")}
    wanted = result["steps"] + 60
    further = manifest("digits", training={**training, "steps": wanted})
    onward = start(further, "-o", "json", "--resume", result["directory"])
    assert onward.end() == 0, onward.err + onward.explain()
    assert onward.result()["steps"] == wanted
    assert onward.attempts()[result["steps"]] < onward.attempts()[result["steps"] + 1], "it began where the other ended"
    calm = digits["calm"].curve()
    assert {step: loss for step, loss in onward.curve().items() if step in calm} == calm, "as if never interrupted"
    assert {path: path.stat().st_mtime_ns for path in run.directory.rglob("*")} == before, "the earlier run stays"


def test_sigterm_leaves_nothing(start) -> None:
    run = start(manifest("script", task=None, checkpoint=None, command=["script.py"]), files={"script.py": SLEEPING})
    run.until(lambda: len(run.pids("script.py")) == 2)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 130, run.err + run.explain()
    run.assert_nothing_left()


def test_a_killed_runner_takes_its_processes_with_it(start) -> None:
    run = start(manifest("script", task=None, checkpoint=None, command=["script.py"]), files={"script.py": SLEEPING})
    run.until(lambda: len(run.pids("script.py")) == 2)
    run.process.kill()
    run.process.communicate()
    deadline = time.monotonic() + PATIENCE
    while list(strays(run.directory)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_cannot_be_planned_is_not_started(start) -> None:
    model = {"kind": "measured", "parameters": 10**12}
    run = start(manifest("huge", model=model, checkpoint=None))
    assert run.end() == 3
    assert run.result()["reason"] == "Infeasible"
    assert not any(run.directory.glob("pods/*"))


def fails_the_whole_job(run: Run, code: int) -> dict[str, Any]:
    assert run.end() == 1, run.explain()
    failure = run.result()["failure"]
    assert (failure["rank"], failure["exitCode"]) == (1, code)
    run.assert_nothing_left()
    return failure


def test_a_rank_that_fails_fails_the_whole_job(start) -> None:
    fails_the_whole_job(start(scripted(FAILING)), 7)


def test_a_rank_that_leaves_early_fails_the_whole_job(left_early: Run) -> None:
    assert fails_the_whole_job(left_early, 0)["reason"] == "EarlyExit"
