"""A plug-in as a user gets it: a wheel beside ours, named in the job. No file of ours knows that it exists."""

from pathlib import Path

import pytest

from tests.local.runs import KILLER, manifest
from tests.wheel import ROOT, build_wheel, unpack

TOPK = {"name": "compression", "options": {"method": "topk", "fraction": "0.02"}}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installer makes of the plug-in's wheel."""
    folder = tmp_path_factory.mktemp("plugin")
    return unpack(build_wheel(folder, ROOT / "plugins" / "compression"), folder / "installed")


def test_a_job_with_the_plugin_goes_on_bit_for_bit_after_a_killed_rank(start, packages: Path, digits) -> None:
    """Real agents, tokens from the issuer, a checkpoint with the error memory of both ranks."""
    job = manifest("digits", plugins=[TOPK])
    killed = manifest("digits", task="mytask:killer", plugins=[TOPK])
    undisturbed = start(job, packages=packages)
    disturbed = start(killed, packages=packages, files={"mytask.py": KILLER})
    assert undisturbed.end() == 0, undisturbed.err + undisturbed.explain()
    assert disturbed.end() == 0, disturbed.err + disturbed.explain()
    assert (disturbed.result()["attempts"], disturbed.result()["restarts"]) == (2, 1)
    assert len(undisturbed.curve()) == 60
    assert disturbed.curve() == undisturbed.curve()
    (last,) = disturbed.directory.glob("checkpoints/*/step-60.*")
    assert sorted(path.name for path in last.glob("plugin-*.pt")) == ["plugin-0.pt", "plugin-1.pt"]
    logs = "".join(path.read_text() for path in undisturbed.directory.glob("checkpoints/*/oplog/*.jsonl"))
    assert logs.count('"op":"plugin.open_step"') == 2 * 60
    assert digits["calm"].curve() != undisturbed.curve(), "the plug-in was there"
    disturbed.assert_nothing_left()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"plugins": [TOPK]}, "plugins='compression': is not installed in this image"),
        (
            {"plugins": [TOPK], "parallelism": {"mode": "Manual", "data": 2, "sharding": "full"}},
            "a plug-in takes gradients whole",
        ),
    ],
    ids=["not installed", "a plan that splits the model"],
)
def test_what_cannot_be_is_refused_at_the_start(start, packages: Path, spec: dict, said: str) -> None:
    run = start(manifest("digits", **spec), packages=packages if "parallelism" in spec else None)
    assert run.end() != 0
    result = run.result()
    assert said in (result["failure"] or result)["message"], result
    run.assert_nothing_left()


TOY = """
from kuangchao_worker.plugins import Codec

class Negated(Codec):
    version = "1"
    summable = True

    def encode(self, step, name, gradient):
        return -gradient

    def decode(self, payload, elements):
        return payload

def negated(options):
    return Negated()
"""


def test_anybody_s_plugin_runs_under_a_token_of_its_own(start, tmp_path: Path) -> None:
    """Written here: uphill instead of down shows that it was there."""
    packages = tmp_path / "toy"
    info = packages / "toy-1.dist-info"
    info.mkdir(parents=True)
    (packages / "toy.py").write_text(TOY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[kuangchao.plugins]\nuphill = toy:negated\n")
    run = start(manifest("digits", steps=20, plugins=[{"name": "uphill"}]), packages=packages)
    assert run.end() == 0, run.err + run.explain()
    losses = [float.fromhex(run.curve()[step]) for step in (1, 20)]
    assert losses[1] > losses[0]
    logs = "".join(path.read_text() for path in run.directory.glob("checkpoints/*/oplog/*.jsonl"))
    assert logs.count('"op":"plugin.open_step"') == 2 * 20
