"""`kuangchao plan --check`: a plan of somebody's own hand against the laws, the job and the memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kuangchao_operator.cli.main import app

EXAMPLE = Path(__file__).parents[3] / "examples/split"


def plan(*options: str) -> Result:
    files = [str(EXAMPLE / "job.yaml"), "--resources", str(EXAMPLE / "nodes.yaml")]
    return CliRunner().invoke(app, ["plan", *files, *options, "-o", "json"])


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return dict(json.loads(plan().stdout)["plan"])


def test_a_plan_of_the_planner_is_fine_as_it_is(made: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(made))
    done = plan("--check", str(path))
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["plan"] == made


@pytest.mark.parametrize(
    ("changes", "field", "nearest"),
    [
        ({"accumulationSteps": 3}, "plan.accumulationSteps", "2"),
        ({"recompute": "full"}, "parallelism.recompute", "none"),
        ({"worldSize": 4}, "plan.worldSize", "8"),
        ({"schedule": "zb-h2", "virtualStages": 1}, "parallelism.schedule", "zb-v"),
    ],
)
def test_a_change_that_breaks_it_is_named_with_what_would_do(
    made: dict[str, Any], tmp_path: Path, changes: dict[str, Any], field: str, nearest: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(made | changes))
    done = plan("--check", str(path))
    assert done.exit_code == 3
    answer = json.loads(done.stdout)
    assert (answer["feasible"], answer["field"], answer["nearest"]) == (False, field, nearest)
