"""The example whose plan nobody pinned: what the planner makes of it, and that it says of its model what is so."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from kuangchao_operator.cli.main import app

EXAMPLE = Path(__file__).parents[3] / "examples/split"


@pytest.mark.parametrize("millis", [1000, 1500, 1750, 2000])
def test_the_planner_divides_it_over_tensor_pipeline_and_data_by_itself(tmp_path: Path, millis: int) -> None:
    nodes = tmp_path / "nodes.yaml"
    text = (EXAMPLE / "nodes.yaml").read_text()
    nodes.write_text(text.replace("allocatableMilliCpu: 2000", f"allocatableMilliCpu: {millis}"))
    done = CliRunner().invoke(app, ["plan", str(EXAMPLE / "job.yaml"), "--resources", str(nodes), "-o", "json"])
    assert done.exit_code == 0, done.stdout
    made = json.loads(done.stdout)
    assert {axis: made[axis] for axis in ("tensor", "pipeline", "data")} == {"tensor": 2, "pipeline": 2, "data": 2}
    assert made["alternatives"][0]["summary"].partition(" ")[0] != "tp2pp2dp2"
    assert "slower by" in made["alternatives"][0]["reason"]


def test_it_pastes_what_describe_model_prints_and_pins_the_order_only() -> None:
    spec = yaml.safe_load((EXAMPLE / "job.yaml").read_text())["spec"]
    said = [word for name, value in spec["taskArgs"].items() for word in ("--arg", f"{name}={value}")]
    done = CliRunner().invoke(app, ["describe-model", spec["task"], *said])
    printed = yaml.safe_load(done.stdout)
    assert spec["parallelism"] == {**printed["parallelism"], "schedule": "zb-v"}
    assert spec["model"].items() <= printed["model"].items()


def test_its_pool_is_the_one_that_it_is_planned_for() -> None:
    pool = yaml.safe_load((EXAMPLE / "pool.yaml").read_text())
    assert pool == next(yaml.safe_load_all((EXAMPLE / "nodes.yaml").read_text()))
