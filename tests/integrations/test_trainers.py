"""Trainers of others under `command`: two real processes; their steps arrive, and their work goes on in a later run."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.worker.fakegate import ROOT, Cluster, make_launch, make_plan

TRAINERS = {"huggingface": ("transformers", "loss"), "lightning": ("lightning", "train/loss")}


@pytest.fixture(params=TRAINERS)
def trainer(request: pytest.FixtureRequest) -> str:
    package, _ = TRAINERS[request.param]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-integrations")
    return str(request.param)


async def run(folder: Path, trainer: str, steps: int) -> Cluster:
    folder.mkdir(exist_ok=True)
    script = str(ROOT / "examples" / trainer / "train.py")
    launch = make_launch(
        make_plan(2, per_pod=2), None, command=(script, "--steps", str(steps)), checkpoint_path="job-1"
    )
    async with Cluster(folder, launch) as cluster:
        await cluster.start_agents()
        assert await cluster.finish(seconds=280) == [0], cluster.logs()
    return cluster


@pytest.mark.timeout(600)
async def test_steps_and_metrics_arrive_and_the_next_run_goes_on(tmp_path: Path, trainer: str) -> None:
    first = await run(tmp_path, trainer, 10)
    last = first.control.beats[-1]
    assert [(r.exit_code, r.step, r.total_steps) for r in last.ranks] == [(0, 10, 10)] * 2
    assert float(last.metrics[TRAINERS[trainer][1]]) > 0
    second = await run(tmp_path, trainer, 20)
    stepped = [r.step for beat in second.control.beats for r in beat.ranks if r.step]
    assert min(stepped) > 10, "it began where the checkpoint of the first run left it"
    assert stepped[-1] == 20
