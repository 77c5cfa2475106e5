"""How a run looks: a bar that fits a terminal, and lines that say something new elsewhere."""

import io
import re

import pytest

from kuangchao_contracts.api.trainingjob import Progress, TrainingJobStatus
from kuangchao_contracts.reasons import Phase
from kuangchao_operator.cli.progress import progress_view
from tests.unit.cli.jobs import job

METRICS = {"accuracy": "0.9694", "checkpointStep": "250", "gradientNorm": "0.39541", "loss": "0.04601"}
ESCAPE = re.compile(r"\x1b\[[0-9?;]*[A-Za-z]")


class Terminal(io.StringIO):
    """Takes text as a terminal would."""

    def isatty(self) -> bool:
        return True


def running(step: int) -> TrainingJobStatus:
    progress = Progress(step=step, total_steps=300, percent=step // 3, metrics=METRICS)
    return TrainingJobStatus(
        phase=Phase.RUNNING, attempt=1, ready="2/2", progress_text=f"{step}/300", progress=progress
    )


def show(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *statuses: TrainingJobStatus | None) -> list[str]:
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with progress_view(quiet=False) as view:
        for status in statuses:
            view.update(job().replace(status=status))
        view.note("Planned: dp2")
    return ESCAPE.sub("", stream.getvalue()).replace("\r", "\n").splitlines()


def test_a_bar_shows_the_whole_progress_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show(monkeypatch, Terminal(), None, running(150), running(300))
    assert any("Planned: dp2" in line for line in lines)
    last = next(line for line in reversed(lines) if "300/300" in line)
    assert "accuracy 0.9694, loss 0.0460" in last
    assert "…" not in last


def test_a_line_appears_only_for_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show(monkeypatch, io.StringIO(), None, running(150), running(151), running(300))
    assert ["150/300" in lines[0], "300/300" in lines[1]] == [True, True]
    assert lines[2:] == ["Planned: dp2"]
    assert lines[0].endswith("accuracy 0.9694, loss 0.0460, gradientNorm 0.3954, checkpointStep 250")
