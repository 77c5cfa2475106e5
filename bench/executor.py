"""Our executor, tokens and audit on, against the same loop under torchrun; runs alternate, so both meet one noise."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.figures import Bound, Figure, Pair, Side, cost_microseconds, cpu_cost_microseconds, ratio, spread

ROOT = Path(__file__).resolve().parents[1]
ROOTS = [str(ROOT), *(str(ROOT / part) for part in ("contracts", "operator", "worker"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1"}
TIMEOUT = 600
RANKS = 2
BATCH = 64
RATIO = 0.97
OURS = [sys.executable, "-m", "kuangchao_operator.cli.main", "run"]
THEIRS = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone", "-m"]


def ours(name: str, steps: int) -> Side:
    """A local run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(_job(name, steps)))
        answer = _run([*OURS, str(file), "--workdir", folder, "-o", "json"])
    return _side(answer["metrics"], steps)


def torchrun(name: str, steps: int) -> Side:
    """The plain loop."""
    return _side(_run([*THEIRS, "bench.torchrun_loop", name, str(steps), str(BATCH)]), steps)


def _side(metrics: dict[str, Any], steps: int) -> Side:
    # a plan that cuts the batch into micro-batches ticks more often: then the sides did not do the same work
    if float(metrics["ticks"]) != steps:
        raise RuntimeError(f"{metrics['ticks']} ticks in {steps} steps")
    return Side(float(metrics["stepsPerSecond"]), float(metrics["cpuSecondsPerStep"]))


def _job(name: str, steps: int) -> dict[str, Any]:
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"bench-{name}"},
        "spec": {
            "pool": "cpu",
            "task": "bench.workloads:timed",
            "taskArgs": {"workload": name},
            "devices": {"count": RANKS},
            "training": {"globalBatch": BATCH, "steps": steps},
        },
    }


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-4000:]}\n{done.stdout[-2000:]}")
    return dict(json.loads(done.stdout[done.stdout.index("{") :]))


def pairs(name: str, steps: int, count: int) -> list[Pair]:
    """Neighbouring runs. Who goes first alternates, so that a machine that gets slower or faster favours neither."""
    found = []
    for number in range(count):
        if number % 2 == 0:
            mine, theirs = ours(name, steps), torchrun(name, steps)
        else:
            theirs, mine = torchrun(name, steps), ours(name, steps)
        found.append(Pair(mine, theirs))
    return found


def measure(quick: bool = False) -> list[Figure]:
    """Long steps for the ratio, short ones for what a step costs."""
    count = 1 if quick else 4  # even: each side goes first equally often
    long = pairs("matrices", 40 if quick else 120, count)
    short = pairs("digits", 300 if quick else 1_500, count)
    return [
        _rate("long steps", long, RATIO),
        *_costs("long steps", long),
        _rate("digits", short, None),
        *_costs("digits", short),
    ]


def _rate(what: str, runs: list[Pair], target: float | None) -> Figure:
    return Figure(
        "executor", f"rate / torchrun, {what}", round(ratio(runs), 4), "", Bound.AT_LEAST, target, spread(runs)
    )


def _costs(what: str, runs: list[Pair]) -> list[Figure]:
    step = 1e3 / statistics.median(run.theirs.rate for run in runs)
    cpu = 1e3 * statistics.median(run.theirs.cpu for run in runs)
    return [
        Figure("executor", f"step of torchrun, {what}", round(step, 3), "ms", note=f"{cpu:.3f} ms of CPU"),
        Figure("executor", f"our cost, {what}", round(cost_microseconds(runs), 1), "us/step"),
        Figure("executor", f"our cost in CPU time, {what}", round(cpu_cost_microseconds(runs), 1), "us/step"),
    ]
