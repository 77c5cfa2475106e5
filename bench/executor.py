"""Our executor, tokens and audit on, against the same loop under torchrun, by turns, so that both meet one noise."""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.figures import Bound, Figure, Pair, cost_microseconds, cpu_cost_microseconds, ratio, spread
from bench.layouts import Layout
from bench.turns import WARM_UP, Team, referee

ROOT = Path(__file__).resolve().parents[1]
ROOTS = [str(ROOT), *(str(ROOT / part) for part in ("contracts", "operator", "worker"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1"}
TIMEOUT = 600
RANKS = 2
END_SECONDS = 20
RATIO = 0.97
OURS = [sys.executable, "-m", "kuangchao_operator.cli.main", "run"]
THEIRS = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone", "-m"]


def pairs(name: str, batch: int, block: int, count: int, runs: int, layout: Layout = Layout.DATA) -> list[Pair]:
    """Pairs of blocks out of several runs: where the kernel puts a process's memory alone makes 10 % of difference."""
    return [pair for _ in range(runs) for pair in _pairs(name, batch, block, count, layout)]


def _pairs(name: str, batch: int, block: int, count: int, layout: Layout) -> list[Pair]:
    """Blocks of steps by turns in one run of each side."""
    steps = WARM_UP + block * count + 1  # the last block ends where the next step begins
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "turns"
        judge = stack.enter_context(referee(path, block))
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(_job(name, batch, steps, path, block, layout)))
        ours = stack.enter_context(_started([*OURS, str(file), "--workdir", folder, "-o", "json"], folder, "ours"))
        arguments = [name, layout.value, str(steps), str(batch), str(path), str(block)]
        theirs = stack.enter_context(_started([*THEIRS, "bench.torchrun_loop", *arguments], folder, "theirs"))
        found = judge.pairs(ours, theirs, count)
        for team in (ours, theirs):
            if team.process.wait(timeout=TIMEOUT):
                raise RuntimeError("a side failed after its last block")
    return found


@contextlib.contextmanager
def _started(command: list[str], folder: str, side: str) -> Iterator[Team]:
    """One side's processes; what they said is shown only when the measurement breaks."""
    log = Path(folder) / f"{side}.log"
    with log.open("w") as output:
        process = psutil.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
        team = Team(RANKS, process)
        try:
            yield team
        except BaseException:
            sys.stderr.write(f"{side}:\n{log.read_text()[-4000:]}\n")
            raise
        finally:
            _end(team)


def _end(team: Team) -> None:
    """A stopped process does not act on SIGTERM, so all are continued first."""
    if not team.process.is_running():
        return
    tree = [team.process, *team.process.children(recursive=True)]
    team.signal(psutil.Process.resume)
    team.process.terminate()
    for process in psutil.wait_procs(tree, timeout=END_SECONDS)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _job(name: str, batch: int, steps: int, path: Path, block: int, layout: Layout) -> dict[str, Any]:
    timing = {"socket": str(path), "block": str(block), "loads": str(layout.loads)}
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"bench-{name}-{layout.value}"},
        "spec": {
            "pool": "cpu",
            "task": "bench.workloads:timed",
            "taskArgs": {"workload": name, **timing},
            "devices": {"count": RANKS},
            "parallelism": layout.pinned(batch),
            "training": {"globalBatch": batch, "steps": steps, "sequenceLength": 1},
            **({"model": layout.model} if layout.model is not None else {}),
        },
    }


def measure(quick: bool = False) -> list[Figure]:
    """Long steps for the ratio, short ones for what a step costs."""
    count, runs = (2, 1) if quick else (6, 6)  # an even count: each side goes first equally often
    long = pairs("matrices", 128, 20, count, runs)
    short = pairs("digits", 64, 250, count, runs)
    return [*compared("long steps", long, RATIO), *compared("digits", short, None)]


def compared(what: str, runs: list[Pair], target: float | None, group: str = "executor") -> list[Figure]:
    """Figures of a comparison: the ratio with its spread, a step of theirs, and what ours takes more."""
    step = 1e3 / statistics.median(run.theirs.rate for run in runs)
    cpu = 1e3 * statistics.median(run.theirs.cpu for run in runs)
    rate = round(ratio(runs), 4)
    return [
        Figure(group, f"rate / torchrun, {what}", rate, "", Bound.AT_LEAST, target, spread(runs)),
        Figure(group, f"step of torchrun, {what}", round(step, 3), "ms", note=f"{cpu:.3f} ms of CPU"),
        Figure(group, f"our cost, {what}", round(cost_microseconds(runs), 1), "us/step"),
        Figure(group, f"our cost in CPU time, {what}", round(cpu_cost_microseconds(runs), 1), "us/step"),
    ]
