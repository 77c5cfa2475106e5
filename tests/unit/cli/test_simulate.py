"""`kuangchao plan --simulate`: what is drawn, where it goes, and which options contradict each other."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kuangchao_operator.cli.main import app
from tests.unit.cli.manifests import changed

JOB = changed("spec.training.globalBatch", 64)


def call(*options: str, manifest: str = JOB, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(app, ["plan", "-", *options], input=manifest)


def test_a_bare_option_draws_below_the_plan() -> None:
    found = call("--simulate", COLUMNS="70")
    plan, _, drawing = found.stdout.partition("\n\n")
    assert found.exit_code == 0
    assert plan.startswith("Plan dp")
    lines = drawing.splitlines()
    assert lines[0].startswith("1 stage, 1 micro-batch; ")
    assert lines[1].startswith("stage 0 100.0 % 0▒")
    assert len(lines[1]) == 70


def test_terminals_without_unicode_get_ascii() -> None:
    found = CliRunner(charset="latin-1").invoke(app, ["plan", "-", "--simulate=terminal"], input=JOB)
    assert "stage 0 100.0 % 0f" in found.stdout
    assert found.stdout.isascii()


@pytest.mark.parametrize("drawing", ["svg", "chrome"])
def test_drawings_for_other_programs_are_alone_on_stdout(drawing: str) -> None:
    found = call(f"--simulate={drawing}")
    assert found.exit_code == 0
    if drawing == "svg":
        assert ET.fromstring(found.stdout).tag.endswith("svg")
    else:
        assert json.loads(found.stdout)["traceEvents"]


@pytest.mark.parametrize(("drawing", "start"), [("svg", "<svg"), ("chrome", '{"traceEvents"'), ("terminal", "1 stage")])
def test_a_drawing_goes_to_a_file(tmp_path: Path, drawing: str, start: str) -> None:
    path = tmp_path / "step"
    found = call(f"--simulate={drawing}", "--to", str(path))
    assert found.stdout.startswith("Plan dp")
    assert "stage 0" not in found.stdout
    assert path.read_text(encoding="utf-8").startswith(start)


def test_json_has_the_figures_beside_the_plan(tmp_path: Path) -> None:
    plain = json.loads(call("-o", "json").stdout)
    path = tmp_path / "step.svg"
    found = json.loads(call("-o", "json", "--simulate=svg", "--to", str(path)).stdout)
    step = found.pop("simulation")
    assert found == plain
    assert step.keys() == {
        *("microBatches", "simulatedMicroBatches", "stepSeconds", "bubbleFraction", "steadyBubbleFraction", "stages")
    }
    assert path.exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--to", "step.svg"),
        ("-o", "json", "--simulate=svg"),
        ("--simulate=png",),
    ],
)
def test_options_that_contradict_each_other_are_bad_input(options: tuple[str, ...]) -> None:
    found = call(*options)
    assert found.exit_code == 2
    assert not found.stdout


def test_without_a_plan_nothing_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "step.svg"
    found = call("--simulate=svg", "--to", str(path), manifest=changed("spec.parallelism", {"data": 3}))
    assert found.exit_code == 3
    assert not path.exists()
