"""Prints figures as they came out and writes them with the facts of the machine. Judges nothing beyond the targets."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.figures import Figure, text

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "kopf", "kubernetes", "pydantic")
VERDICTS = {True: "met", False: "short", None: ""}


def machine() -> dict[str, Any]:
    """What the figures depend on; the load average says who else was at work."""
    return {
        "commit": _commit(),
        "cores": os.cpu_count(),
        "loadAverage": [round(load, 2) for load in os.getloadavg()],
        "memoryGiB": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def show(figures: Sequence[Figure], console: Console) -> None:
    """The table."""
    table = Table("group", "figure", "value", "target", "", "note", box=None, pad_edge=False, header_style="bold")
    for figure in figures:
        value = f"{text(figure.value)} {figure.unit}".rstrip()
        table.add_row(figure.group, figure.name, value, figure.wanted, VERDICTS[figure.met], figure.note)
    console.print(table)


def footer(facts: dict[str, Any]) -> str:
    """The facts of the machine without which the figures mean nothing."""
    loads = ", ".join(map(str, facts["loadAverage"]))
    return (
        f"{facts['cores']} cores, load average {loads} at the start, torch {facts['torch']}, commit {facts['commit']}"
    )


def write(path: Path, figures: Sequence[Figure], before: dict[str, Any], seconds: float) -> None:
    """The JSON file: figures, and the machine before and after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": before,
        "loadAverageAtEnd": machine()["loadAverage"],
        "figures": [figure.record() for figure in figures],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def default_path(now: datetime) -> Path:
    """Where results go unless told otherwise."""
    return ROOT / "bench" / "results" / f"{now:%Y%m%d-%H%M%S}.json"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False
    )
    return done.stdout.strip() or None
