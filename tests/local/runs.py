"""Starts `kuangchao run` as people do and looks at what it leaves."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kuangchao_operator.local.processes import strays

COMMAND = [sys.executable, "-m", "kuangchao_operator.cli.main", "run"]
PATIENCE = 400.0
"""Limit of every wait for something that will happen. It bounds a hang: a machine may be as slow as it is."""
KILLER = """
import os, signal, time
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from kuangchao_worker import report
from kuangchao_worker.tasks.digits import digits

def committed():
    return any("step-20.att-1" in path.read_text() for path in Path("runs").glob("*/status.json"))

def killer(args):
    task, calls, mark = digits(args), 0, Path("killed")

    def loss(module, batch):
        nonlocal calls
        calls += 1
        if calls == 27 and dist.get_rank() == 1 and not mark.exists():
            while not committed():
                time.sleep(0.05)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        found = task.loss(module, batch)
        report.metrics(ownLoss=found, rank=dist.get_rank())
        return found

    return replace(task, loss=loss)
"""
"""Digits, of which rank 1 kills itself in step 27, when the checkpoint of step 20 is in the ledger. Once.
Every rank reports its loss."""
HELD = """
import time
from dataclasses import replace
from pathlib import Path

from kuangchao_worker.tasks.digits import digits

def held(args):
    task, calls = digits(args), 0

    def loss(module, batch):
        nonlocal calls
        calls += 1
        if calls == 6:
            Path("held").touch()
            while not Path("go").exists():
                time.sleep(0.02)
        return task.loss(module, batch)

    return replace(task, loss=loss)
"""
"""Digits that wait in step 6, which they tell by the file `held`, for the file `go`."""
TOKEN = re.compile(rb"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.")
"""Header and payload of a JWT. Shorter patterns are met by chance in certificates and key ids."""


def manifest(name: str, steps: int = 60, **spec: Any) -> dict[str, Any]:
    """Digits over two pods with a checkpoint every 20 steps, unless told otherwise; None removes a field."""
    wanted = {
        "pool": "cpu",
        "task": "kuangchao_worker.tasks.digits:digits",
        "training": {"globalBatch": 64, "steps": steps, "seed": 7},
        "devices": {"count": 2, "perPod": 1},
        "checkpoint": {"everySteps": 20, "storage": {"claimName": "checkpoints"}},
        **spec,
    }
    body = {key: value for key, value in wanted.items() if value is not None}
    return {"apiVersion": "kuangchao.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": body}


@dataclass
class Run:
    """A run in an otherwise empty folder. `job` is a manifest or the path of one."""

    folder: Path
    job: dict[str, Any] | Path
    arguments: tuple[str, ...] = ("-o", "json")
    packages: Path | None = None
    """Where our packages come from, if not from the checkout."""

    def __post_init__(self) -> None:
        path = self.job if isinstance(self.job, Path) else self.folder / "job.yaml"
        if isinstance(self.job, dict):
            path.write_text(yaml.safe_dump(self.job))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, [self.packages, *sys.path]))),
            "TMPDIR": str(self.temporary),
        }
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [*COMMAND, str(path), *self.arguments], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.out = self.err = ""

    @property
    def temporary(self) -> Path:
        """Its own system temporary directory, to see that nothing is left there."""
        return self.folder / "t"

    @property
    def directory(self) -> Path:
        """Its run directory, once there is one."""
        self.until(lambda: any(self.folder.glob("runs/*/status.json")))
        return next(self.folder.glob("runs/*"))

    def end(self) -> int:
        """Wait for the end; the exit code."""
        self.out, self.err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def result(self) -> dict[str, Any]:
        """The JSON that it printed."""
        return dict(json.loads(self.out))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something while the run goes on."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, self.explain()
            time.sleep(0.05)

    def curve(self) -> dict[int, str]:
        """Loss of every step in hex; of a step that was done twice, the newest attempt's."""
        entries = [json.loads(line) for path in self.metrics() for line in path.read_text().splitlines()]
        return {e["step"]: e["loss"] for e in sorted(entries, key=lambda e: (e["attempt"], e["step"]))}

    def attempts(self) -> dict[int, int]:
        """The attempt whose loss of a step counts: the newest one's."""
        entries = [json.loads(line) for path in self.metrics() for line in path.read_text().splitlines()]
        return {e["step"]: e["attempt"] for e in sorted(entries, key=lambda e: e["attempt"])}

    def metrics(self) -> list[Path]:
        """The loss log, once there is one."""
        return list(self.directory.glob("checkpoints/*/metrics.jsonl"))

    def steps(self) -> int:
        """How many lines the loss log has by now."""
        return sum(len(path.read_text().splitlines()) for path in self.metrics())

    def pids(self, words: str) -> list[int]:
        """Processes of the run whose command line contains these words."""
        found = []
        for pid in strays(self.directory):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except FileNotFoundError:
                continue
            if words in line:
                found.append(pid)
        return found

    def explain(self) -> str:
        """Logs, for messages."""
        logs = sorted(self.folder.glob("runs/*/**/*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in logs)

    def assert_nothing_left(self) -> None:
        """No process, no socket, no key, no token."""
        assert list(strays(self.directory)) == []
        assert list(self.temporary.glob("kuangchao*")) == []
        holders = [p for p in self.directory.rglob("*") if p.is_file() and TOKEN.search(p.read_bytes())]
        assert holders == []

    def close(self) -> None:
        """End the run if a test has not."""
        with self.process:
            if self.process.poll() is None:
                self.process.kill()
