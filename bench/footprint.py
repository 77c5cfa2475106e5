"""What ranks hold at most against what the planner says, for the reference tasks on CPU devices, under `kuangchao run`.

The peak is the kernel's (VmHWM), of the whole process: model, snapshot of a checkpoint, interpreter and libraries. The
planner's figure for that is what it reserves of a device. Readings that `kuangchao calibrate` takes are written too.
"""

import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from bench.executor import ENVIRONMENT, RANKS, ROOT, TIMEOUT
from bench.figures import Figure
from bench.layouts import Layout
from kuangchao_contracts.plan import ModelDescriptor, TransformerModel
from kuangchao_worker.tasks import load_task
from kuangchao_worker.tasks.measure import measure as measured_model

KUANGCHAO: Final = [sys.executable, "-m", "kuangchao_operator.cli.main"]
TASKS: Final = "kuangchao_worker.tasks"
RANK: Final = "kuangchao_worker.rank"
STEPS: Final = 6
LOOK_SECONDS: Final = 0.02
MIB: Final = 2**20
SIZES: Final = {"layers": "4", "hidden": "256", "heads": "8", "kvHeads": "8", "ffn": "1024", "sequence": "128"}
SMALL: Final = {**SIZES, "layers": "2", "hidden": "16", "heads": "2", "kvHeads": "2", "ffn": "32"}
"""Next to nothing: what its ranks hold is the process's own, which the other readings alone do not tell."""
DEEP: Final = {**SIZES, "layers": "8", "hidden": "128", "heads": "4", "kvHeads": "4", "ffn": "512"}
WIDE: Final = {**SIZES, "layers": "2", "hidden": "512", "ffn": "2048"}
SEQUENCE: Final = int(SIZES["sequence"])
EVERY: Final = (Layout.DATA, Layout.SHARDED, Layout.TENSOR, Layout.PIPELINE)


@dataclass(frozen=True)
class Case:
    """One run: a reference task, how two ranks share it, and its batch."""

    task: str
    layout: Layout
    batch: int
    args: Mapping[str, str] = field(default_factory=dict)
    size: str = ""
    """What its sizes are called, where a task is run with several."""

    @property
    def model(self) -> str:
        """Task and sizes, for people; readings of one model are held out of a fit together."""
        return f"{self.size} {self.task.rsplit(':', 1)[1]}".lstrip()

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model}, {self.layout}, batch {self.batch}"

    def job(self, model: ModelDescriptor, folder: Path) -> dict[str, Any]:
        """The manifest. It saves as it goes, for a snapshot is part of what a rank holds."""
        return {
            "apiVersion": "kuangchao.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "bench-memory"},
            "spec": {
                "pool": "cpu",
                "task": f"{TASKS}.{self.task}",
                "taskArgs": dict(self.args),
                "devices": {"count": RANKS, "perPod": RANKS},
                "model": model.wire(),
                "parallelism": self.layout.pinned(self.batch),
                "training": {"globalBatch": self.batch, "steps": STEPS, "sequenceLength": self.sequence},
                "checkpoint": {"everySteps": STEPS // 2, "storage": {"claimName": folder.name}},
            },
        }

    @property
    def sequence(self) -> int:
        """Tokens of a sample; 1 where a sample is no text."""
        return SEQUENCE if "sequence" in self.args else 1


CASES: Final = (
    *(Case(f"{name}:{name}", layout, 256) for name in ("digits", "mlp") for layout in EVERY[:2]),
    *(Case("text:transformer", layout, batch, SIZES) for layout in EVERY for batch in (16, 64)),
    *(Case("text:moe", layout, 32, SIZES) for layout in (Layout.DATA, Layout.SHARDED, Layout.PIPELINE)),
    *(Case("text:transformer", layout, 4, SMALL, "small") for layout in (Layout.DATA, Layout.PIPELINE)),
    *(Case("text:transformer", layout, 64, DEEP, "deep") for layout in (Layout.SHARDED, Layout.PIPELINE)),
    *(Case("text:transformer", layout, 32, WIDE, "wide") for layout in (Layout.DATA, Layout.PIPELINE)),
)


@dataclass(frozen=True)
class Reading:
    """What the ranks of a case held at most, and the planner's word, by stage; bytes."""

    case: Case
    model: ModelDescriptor
    peaks: tuple[int, ...]
    estimates: tuple[int, ...]


def figures(quick: bool = False, runs: Path | None = None) -> list[Figure]:
    """Peaks and estimates; the readings of transformers go to the file `runs`."""
    readings = [read(case) for case in (CASES[:1] if quick else CASES)]
    if runs is not None:
        runs.parent.mkdir(parents=True, exist_ok=True)
        runs.write_text(table(readings))
    return [figure for reading in readings for figure in _figures(reading)]


def _figures(reading: Reading) -> Iterator[Figure]:
    for stage, (peak, estimate) in enumerate(zip(reading.peaks, reading.estimates, strict=True)):
        where = f", stage {stage}" if len(reading.peaks) > 1 else ""
        note = f"{peak / MIB:.0f} MiB, planned {estimate / MIB:.0f}"
        yield Figure("worker", f"memory / planned, {reading.case.name}{where}", round(peak / estimate, 3), note=note)


def read(case: Case) -> Reading:
    """Run a case. Raises RuntimeError with what it said when it does not complete."""
    model = _model(case)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(case.job(model, folder)))
        plan = json.loads(_output([*KUANGCHAO, "plan", str(file), "-o", "json"]))
        peaks = _peaks([*KUANGCHAO, "run", str(file), "--workdir", name, "-o", "json"], folder / "log")
    stages = plan["memory"]["stages"]
    each = RANKS // len(stages)
    by_stage = tuple(max(peaks[rank] for rank in range(n * each, (n + 1) * each)) for n in range(len(stages)))
    return Reading(case, model, by_stage, tuple(int(stage["reservedBytes"]) for stage in stages))


def _model(case: Case) -> ModelDescriptor:
    name = f"{TASKS}.{case.task}"
    return load_task(name, dict(case.args)).describes or measured_model(name, case.args)[0]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    return done.stdout


def _peaks(command: list[str], log: Path) -> dict[int, int]:
    """Peak of each rank, looked at until it ends: the kernel's mark only rises, so the last look is right."""
    peaks: dict[int, int] = {}
    deadline = time.monotonic() + TIMEOUT
    with log.open("w") as output:
        process = psutil.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and time.monotonic() < deadline:
                for rank, peak in _look(process):
                    peaks[rank] = max(peaks.get(rank, 0), peak)
                time.sleep(LOOK_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=60)
    if process.returncode or len(peaks) != RANKS:
        raise RuntimeError(log.read_text()[-4_000:])
    return peaks


def _look(process: psutil.Process) -> Iterator[tuple[int, int]]:
    """Rank and peak of the ranks below a process that live now; any of them may end while it is looked at."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = process.children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            rank = rank_of(child.cmdline())
            if rank is not None:
                yield rank, high_water(Path(f"/proc/{child.pid}/status"))


def rank_of(command: Sequence[str]) -> int | None:
    """The rank whose command line this is; None for any other process."""
    words = " ".join(command).split()
    if RANK not in words:
        return None
    return next((int(word.removeprefix("rank=")) for word in words if word.startswith("rank=")), None)


def high_water(status: Path) -> int:
    """Bytes that a process has held at most, from its `/proc/<pid>/status`; 0 for one that is ending."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines.get("VmHWM", "0 kB").split()[0]) * 1024


def table(readings: Sequence[Reading]) -> str:
    """Runs as `kuangchao calibrate` reads them. Models that only count their parameters are left out: it fits none."""
    columns = ("id", "group", "backend", "descriptor", "seq", "mbs", "gbs", "dp", "tp", "pp", "sharding",
               "precision", "figure", "stage", "peak_mem_gib")  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for reading in readings:
        case, layout = reading.case, reading.case.layout
        if not isinstance(reading.model, TransformerModel):
            continue
        pinned = layout.pinned(case.batch)
        axes = [pinned.get(axis, 1) for axis in ("data", "tensor", "pipeline")]
        shape = [case.sequence, pinned["microBatch"], case.batch, *axes, pinned.get("sharding", "none"), "fp32"]
        described = reading.model.canonical().decode()
        for stage, peak in enumerate(reading.peaks):
            last = ["device", stage, f"{peak / 2**30:.6f}"]
            writer.writerow([f"{case.name}, stage {stage}", case.model, "kuangchao-cpu", described, *shape, *last])
    return text.getvalue()
