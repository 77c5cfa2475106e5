"""`kuangchao plan --what-if` and `--objective`: every axis, another goal, and text that explains both."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.manifests import GOOD
from tests.unit.cli.test_commands import call, descriptor, pool, resources

DECODER = {
    "kind": "transformer",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kvHeads": 8,
    "ffn": 14336,
    "vocab": 128256,
}
TRAINING = {"globalBatch": 16, "sequenceLength": 4096, "precision": "bf16"}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """An 8B decoder on a node of eight H100s, where no data-parallel plan fits."""
    spec = {
        **GOOD["spec"],
        "pool": "here",
        "model": DECODER,
        "training": TRAINING,
        "devices": {"count": 8, "perPod": 4},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**GOOD, "spec": spec}))
    return [
        "plan",
        str(tmp_path / "job.yaml"),
        "--resources",
        resources(tmp_path, descriptor(gpus=8), pool("here", deviceType="gpu")),
    ]


def shown(arguments: list[str], *more: str) -> dict[str, Any]:
    return json.loads(call(*arguments, "-o", "json", *more).stdout)


def test_what_if_finds_a_plan_where_none_can_be_made_without_rules(arguments: list[str]) -> None:
    refused = call(*arguments)
    assert refused.exit_code == 3
    assert "if the task has rules for it (parallelism.taskRules), this fits: " in refused.stdout
    found = call(*arguments, "--what-if")
    assert found.exit_code == 0, found.stderr
    made = shown(arguments, "--what-if")
    assert made["tensor"] * made["pipeline"] * made["context"] * made["data"] == 8
    assert made["data"] < 8
    assert made["step"]["stepUs"] / 1e6 == made["stepSeconds"]


def test_the_text_says_split_step_use_and_what_was_passed_over(arguments: list[str]) -> None:
    lines = call(*arguments, "--what-if").stdout.splitlines()
    starts = [line.split(":")[0] for line in lines]
    assert {"Split", "Batch", "Step", "Use", "Passed over"} <= set(starts)
    assert any(line.startswith("Use: MFU ") and "bubble" in line for line in lines)
    assert any(line.startswith("Memory of a device") for line in lines)
    assert any(line.startswith("Not used: expert (the model has no experts)") for line in lines)


def test_an_objective_is_followed_and_stands_in_the_plan(arguments: list[str]) -> None:
    fewest, leanest = (shown(arguments, "--what-if", "--objective", goal) for goal in ("devices", "memory"))
    assert fewest["worldSize"] == 4
    assert leanest["worldSize"] == 8
    assert (fewest["objective"], leanest["objective"]) == ("devices", "memory")
    most = max(stage["reservedBytes"] for stage in leanest["memory"]["stages"])
    assert most < max(stage["reservedBytes"] for stage in fewest["memory"]["stages"])


def test_an_unknown_objective_is_bad_input(arguments: list[str]) -> None:
    assert call(*arguments, "--objective", "money").exit_code == 2
