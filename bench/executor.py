"""Our executor, tokens and audit on, against the same loop under torchrun; pairs are interleaved."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
ROOTS = [str(ROOT), *(str(ROOT / part) for part in ("contracts", "operator", "worker"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1"}
TIMEOUT = 600


def ours(name: str, steps: int, batch: int) -> float:
    """Steps per second of a local run."""
    manifest = {
        "apiVersion": "kuangchao.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": f"bench-{name}"},
        "spec": {"pool": "cpu", "task": "bench.workloads:timed", "taskArgs": {"workload": name},
                 "devices": {"count": 2}, "training": {"globalBatch": batch, "steps": steps}},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(manifest))
        answer = _run([sys.executable, "-m", "kuangchao_operator.cli", "run", str(file), "--workdir", folder, "-o", "json"])
    return float(answer["metrics"]["stepsPerSecond"])


def torchrun(name: str, steps: int, batch: int) -> float:
    """Steps per second of the plain loop."""
    return float(_run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                       "-m", "bench.torchrun_loop", name, str(steps), str(batch)])["stepsPerSecond"])


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-4000:]}")
    start = done.stdout.index("{")
    return dict(json.loads(done.stdout[start:]))


def compare(name: str, steps: int, batch: int, pairs: int) -> dict[str, Any]:
    """Median rates and the median of the ratios of neighbouring runs."""
    runs = []
    for number in range(pairs):
        # the order alternates, so that a machine that gets slower or faster favours neither side
        sides = (ours, torchrun) if number % 2 == 0 else (torchrun, ours)
        rates = {side.__name__: side(name, steps, batch) for side in sides}
        runs.append((rates["ours"], rates["torchrun"]))
    mine, theirs = (statistics.median(side) for side in zip(*runs, strict=True))
    return {
        "workload": name, "pairs": pairs, "stepsPerSecond": round(mine, 2), "torchrunStepsPerSecond": round(theirs, 2),
        "torchrunStepMilliseconds": round(1000 / theirs, 3),
        "ratio": round(statistics.median(a / b for a, b in runs), 4),
        "costMicrosecondsPerStep": round(statistics.median(1e6 / a - 1e6 / b for a, b in runs), 1),
    }


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Both workloads. The target is a ratio >= 0.97 on `matrices`."""
    pairs = 1 if quick else 5
    return [compare("matrices", 60 if quick else 150, 64, pairs), compare("digits", 300 if quick else 2_000, 64, pairs)]
