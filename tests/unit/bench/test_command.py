"""`python -m bench` without measuring: what is printed, written and answered."""

import json
from pathlib import Path
from typing import Any

import bench.executor
import bench.operator
import pytest
from bench.__main__ import main
from bench.figures import Bound, Figure


def suites(monkeypatch: pytest.MonkeyPatch, executor: Any, operator: Any) -> None:
    monkeypatch.setattr(bench.executor, "measure", executor)
    monkeypatch.setattr(bench.operator, "measure", operator)


def test_a_figure_that_falls_short_is_printed_as_it_is_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def executor(*, quick: bool) -> list[Figure]:
        asked.append(quick)
        return [Figure("executor", "rate", 0.5, "", Bound.AT_LEAST, 0.97)]

    suites(monkeypatch, executor, None)
    path = tmp_path / "results" / "x.json"
    assert main(["--quick", "--only", "executor", "--json", str(path)]) == 0
    assert asked == [True]
    assert "short" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert [(figure["value"], figure["met"]) for figure in written["figures"]] == [(0.5, False)]
    assert {"cores", "loadAverage", "torch"} <= written["machine"].keys()


def test_a_suite_that_breaks_fails_the_command_and_leaves_the_others_standing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*, quick: bool) -> list[Figure]:
        raise RuntimeError("no torchrun here")

    suites(monkeypatch, broken, lambda *, quick: [Figure("operator", "memory", 90.0, "MiB", target=150)])
    path = tmp_path / "x.json"
    assert main(["--only", "executor,operator", "--json", str(path)]) == 1
    assert "no torchrun here" in capsys.readouterr().err
    assert [figure["name"] for figure in json.loads(path.read_text())["figures"]] == ["memory"]


def test_a_suite_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--only", "planet"])
    assert stop.value.code == 2
    assert "planet" in capsys.readouterr().err
