"""A plug-in as a user gets it: a wheel beside ours, named in the job. No file of ours knows that it exists."""

from pathlib import Path

import pytest

from tests.local.runs import manifest
from tests.wheel import ROOT, build_wheel, unpack

TOPK = {"name": "compression", "options": {"method": "topk", "fraction": "0.02"}}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installer makes of the plug-in's wheel."""
    folder = tmp_path_factory.mktemp("plugin")
    return unpack(build_wheel(folder, ROOT / "plugins" / "compression"), folder / "installed")


def test_a_job_with_the_plugin_goes_on_bit_for_bit_after_a_killed_rank(start, packages: Path) -> None:
    """Real agents, tokens from the issuer, a checkpoint with the error memory of both ranks."""
    job = manifest("digits", plugins=[TOPK])
    undisturbed = start(job, packages=packages)
    assert undisturbed.end() == 0, undisturbed.err + undisturbed.explain()
    disturbed = start(job, packages=packages)
    disturbed.until(lambda: disturbed.steps() >= 25)
    disturbed.kill("kuangchao_worker.rank rank=1")
    assert disturbed.end() == 0, disturbed.err + disturbed.explain()
    assert (disturbed.result()["attempts"], disturbed.result()["restarts"]) == (2, 1)
    assert len(undisturbed.curve()) == 60
    assert disturbed.curve() == undisturbed.curve()
    (last,) = disturbed.directory.glob("checkpoints/*/step-60.*")
    assert sorted(path.name for path in last.glob("plugin-*.pt")) == ["plugin-0.pt", "plugin-1.pt"]
    logs = "".join(path.read_text() for path in undisturbed.directory.glob("checkpoints/*/oplog/*.jsonl"))
    assert logs.count('"op":"plugin.open_step"') == 2 * 60
    plain = start(manifest("digits"))
    assert plain.end() == 0
    assert plain.curve() != undisturbed.curve(), "the plug-in was there"
    disturbed.assert_nothing_left()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"plugins": [TOPK]}, "plugins='compression': is not installed in this image"),
        (
            {"plugins": [TOPK], "parallelism": {"mode": "Manual", "data": 2, "sharding": "full"}},
            "reaches whole gradients only",
        ),
    ],
    ids=["not installed", "a plan that splits the model"],
)
def test_what_cannot_be_is_refused_at_the_start(start, packages: Path, spec: dict, said: str) -> None:
    run = start(manifest("digits", **spec), packages=packages if "parallelism" in spec else None)
    assert run.end() != 0
    failure = run.result()["failure"]
    assert said in failure["message"], failure
    run.assert_nothing_left()
