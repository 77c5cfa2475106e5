"""`kuangchao calibrate`, and that its file gives the same plan on the command line and in the operator."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kuangchao_contracts.api import TrainingJob
from kuangchao_operator.cli.main import app
from kuangchao_operator.cli.manifest import read_job, read_resources
from kuangchao_operator.layers.resource.decide import shapes
from kuangchao_operator.layers.strategy.fit.reading import runs_of
from kuangchao_operator.layers.strategy.fit.runs import estimate
from kuangchao_operator.layers.strategy.footprint import shipped
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration, parse
from kuangchao_operator.layers.strategy.requests import plan_request
from kuangchao_operator.layers.strategy.shipped import Planner
from tests.unit.cli.manifests import GOOD
from tests.unit.cli.test_commands import descriptor, pool, resources

COLUMNS = "id,backend,layers,hidden,heads,ffn,vocab,seq,mbs,gbs,figure,peak_mem_gib"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", *arguments])


def with_more_activations() -> Calibration:
    base = shipped.load()
    megatron = base.backends["megatron"].replace(activation_permille=1500)
    return base.replace(backends={**base.backends, "megatron": megatron})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Readings of a device on which modules keep half as much again as fused kernels do."""
    sizes = [(layers, batch) for layers in (2, 8, 16, 32) for batch in (1, 4, 8)]
    lines = [
        f"{layers}-{batch},megatron,{layers},2048,16,8192,1024,2048,{batch},8,allocated" for layers, batch in sizes
    ]
    truth = with_more_activations()
    guessed = runs_of("\n".join([COLUMNS, *(f"{line},1" for line in lines)]))
    measured = [f"{line},{estimate(run, truth) / 2**30}" for line, run in zip(lines, guessed, strict=True)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([COLUMNS, *measured]))
    return path


def test_it_writes_a_calibration_that_plan_takes(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "calibration.json"
    done = call(str(runs), "--hold", "logitBytes.plain", "--write", str(target))
    assert done.exit_code == 0, done.output
    made = parse(target.read_bytes(), "f")
    assert made.backends["megatron"].activation_permille == pytest.approx(1500, abs=3)
    assert (made.version, len(made.fits)) == (shipped.load().version + 1, 1)
    assert "HELD OUT" in done.stdout
    again = call(str(runs), "--hold", "logitBytes.plain", "--base", str(target), "-o", "json")
    assert json.loads(again.stdout)["version"] == made.version + 1


def test_json_is_for_programs(runs: Path) -> None:
    wire = json.loads(call(str(runs), "--hold", "logitBytes.plain", "-o", "json").stdout)
    assert wire["fit"]["constants"][0]["name"] == "activationPermille"
    assert wire["fit"]["errorAfterPpm"] < wire["fit"]["errorBeforePpm"]
    assert len(wire["runs"]) == 12


def test_what_cannot_be_fitted_exits_2_and_writes_nothing(runs: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    few.write_text("\n".join(runs.read_text().splitlines()[:3]))
    done = call(str(few), "--write", str(tmp_path / "none.json"))
    assert done.exit_code == 2
    assert "too few" in done.stderr
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize("content", [b"{}", b"\xff", b"[]"])
def test_a_calibration_that_is_none_exits_2_with_its_fault(content: bytes, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    done = call(str(runs), "--base", str(path))
    assert done.exit_code == 2
    assert "is no calibration" in done.stderr


def test_command_line_and_operator_make_the_same_plan_of_a_calibration(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(GOOD))
    where = resources(tmp_path, descriptor(), pool())
    own = with_more_activations()
    path = tmp_path / "calibration.json"
    path.write_text(own.model_dump_json(by_alias=True))
    shown = CliRunner().invoke(app, ["plan", str(job), "--resources", where, "--calibration", str(path)])
    assert shown.exit_code == 0, shown.output
    manifest: TrainingJob = read_job(str(job))
    nodes, pools = read_resources(where)
    asked = plan_request(manifest.spec, pools[0].spec, shapes(pools[0].spec, tuple(node.spec for node in nodes)))
    in_cluster = Planner(parse(path.read_bytes(), "f")).plan(asked).plan
    assert in_cluster is not None
    assert in_cluster.request_digest == asked.replace(calibration_digest=own.content_hash()).content_hash()
    assert in_cluster.hash[:8] in shown.stdout
    assert Planner(shipped.load()).plan(asked) == Planner().plan(asked)
