"""Progress of a job as it runs: a bar on a terminal, plain lines elsewhere. Shows status, knows nothing more."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_operator.cli.present import number
from kuangchao_operator.local.watcher import Watcher

BAR_WIDTH: Final = 16
BAR_FIGURES: Final = 2
"""As many as fit beside the bar on a terminal of 80 columns."""
FIRST: Final = ("accuracy", "loss", "tokensPerSecond", "samplesPerSecond", "gradientNorm")
"""Figures that people look for; the others follow by name."""


class SilentView:
    """For JSON output: stdout belongs to the result."""

    def update(self, job: TrainingJob) -> None:
        """Nothing to show."""

    def note(self, line: str) -> None:
        """Notes go to stderr, away from the result."""
        print(line, file=sys.stderr, flush=True)


class LineView:
    """A line whenever phase, attempt, readiness or the tenth of progress changes."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()

    def update(self, job: TrainingJob) -> None:
        """Print what has changed enough to tell."""
        if job.status is None:
            return
        status = job.status
        percent = status.progress.percent // 10 if status.progress else 0
        key = (status.phase, status.attempt, status.ready, percent)
        if key != self._last:
            self._last = key
            print(line_of(job), flush=True)

    def note(self, line: str) -> None:
        """Print the note as it is."""
        print(line, flush=True)


class BarView:
    """A rich progress bar."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None, figures="")

    def update(self, job: TrainingJob) -> None:
        """Move the bar."""
        status = job.status or TrainingJobStatus()
        done = status.progress
        self._progress.update(
            self._task,
            description=f"{job.metadata.name} {status.phase}",
            figures=figures(status, BAR_FIGURES),
            completed=done.step if done else 0,
            total=(done.total_steps or None) if done else None,
        )

    def note(self, line: str) -> None:
        """Print above the bar."""
        self._progress.console.print(line, markup=False, highlight=False)


@contextmanager
def progress_view(*, quiet: bool) -> Iterator[Watcher]:
    """The view that fits where the output goes."""
    if quiet:
        yield SilentView()
    elif sys.stdout.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(BAR_WIDTH),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        with Progress(*columns) as progress:
            yield BarView(progress)
    else:
        yield LineView()


def line_of(job: TrainingJob) -> str:
    """Status of a job in one line."""
    status = job.status or TrainingJobStatus()
    parts = [
        f"{job.metadata.name}: {status.phase}",
        status.plan_summary or "",
        f"ready {status.ready}" if status.ready else "",
        f"attempt {status.attempt}" if status.attempt else "",
        status.progress_text,
        figures(status),
    ]
    return "  ".join(filter(None, parts))


def figures(status: TrainingJobStatus, most: int = 4) -> str:
    """The reported metrics in a few characters."""
    metrics = status.progress.metrics if status.progress else {}
    names = [*(name for name in FIRST if name in metrics), *sorted(metrics.keys() - set(FIRST))][:most]
    return ", ".join(f"{name} {number(metrics[name])}" for name in names)
