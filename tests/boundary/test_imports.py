"""Every import contract holds, and every one fires when it is broken: a rule that cannot fail protects nothing."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.boundary.imports import ROOT, Planted, copy_packages, lint, plant

OPERATOR, WORKER, CONTRACTS = "kuangchao_operator", "kuangchao_worker", "kuangchao_contracts"
LAYERS = f"{OPERATOR}.layers"

VIOLATIONS: dict[str, list[Planted]] = {
    "components": [
        Planted(f"{OPERATOR}.local.planted", f"import {WORKER}.agent"),
        Planted(f"{WORKER}.planted", f"import {OPERATOR}.facts"),
        Planted(f"{CONTRACTS}.planted", f"import {WORKER}"),
    ],
    "operator-stack": [
        Planted(f"{OPERATOR}.gate.planted", f"import {LAYERS}.state"),
        Planted(f"{LAYERS}.execution.planted", f"import {OPERATOR}.kube"),
        Planted(f"{OPERATOR}.stray", "pass"),
    ],
    "operator-layers": [
        Planted(f"{LAYERS}.execution.planted", f"import {LAYERS}.state"),
        Planted(f"{LAYERS}.governance.planted", f"import {LAYERS}.execution.model"),
    ],
    "worker-stack": [
        Planted(f"{WORKER}.layers.state.planted", f"import {WORKER}.agent"),
        Planted(f"{WORKER}.stray", "pass"),
    ],
    "agent-apart": [Planted(f"{WORKER}.agent.planted", f"import {WORKER}.rank")],
    "worker-layers": [Planted(f"{WORKER}.layers.topology.planted", f"import {WORKER}.layers.state")],
    "decisions-pure": [
        Planted(f"{LAYERS}.strategy.planted", "import time"),
        Planted(f"{LAYERS}.execution.decide", "import random"),
        Planted(f"{LAYERS}.state.decide", "from pathlib import Path"),
    ],
    "strategy-offline": [
        Planted(f"{LAYERS}.strategy.planted", f"import {OPERATOR}.gate"),
        # By a detour: contracts are allowed, what they import is not.
        Planted(f"{CONTRACTS}.plan", "import torch"),
    ],
    "governance-reads": [
        Planted(f"{LAYERS}.governance.planted", f"import {OPERATOR}.kube"),
        Planted(f"{LAYERS}.governance.planted", f"import {OPERATOR}.signing"),
    ],
    "key-custody": [
        Planted(f"{OPERATOR}.app.planted", f"import {OPERATOR}.signing"),
        Planted(f"{OPERATOR}.gate.planted", f"import {OPERATOR}.signing.keystore"),
    ],
    "kopf-in-shell": [
        Planted(f"{LAYERS}.execution.planted", "import kopf"),
        Planted(f"{WORKER}.agent.planted", "import kopf"),
    ],
    "kubernetes-in-kube": [
        Planted(f"{LAYERS}.resource.planted", "import kubernetes"),
        Planted(f"{OPERATOR}.handlers.planted", "from kubernetes import client"),
        Planted(f"{WORKER}.rank.planted", "import kubernetes"),
    ],
    "torch-in-worker": [
        Planted(f"{OPERATOR}.local.planted", "import torch"),
        Planted(f"{CONTRACTS}.planted", "import torch"),
    ],
    "contracts-small": [Planted(f"{CONTRACTS}.planted", "import aiohttp")],
    "no-tangles": [
        Planted(f"{CONTRACTS}.base", f"import {CONTRACTS}.plan"),
        Planted(f"{OPERATOR}.facts.planted", f"import {OPERATOR}.app"),
    ],
}
NAMES = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    copy_packages(tmp_path)
    return tmp_path


def test_every_contract_has_a_violation() -> None:
    assert VIOLATIONS.keys() == NAMES.keys()


@pytest.mark.parametrize("contract", NAMES)
def test_contract_holds(packages: Path, contract: str) -> None:
    done = lint(packages, contract)
    assert done.returncode == 0, done.stdout + done.stderr


def _cases() -> list[Any]:
    return [
        pytest.param(contract, planted, id=f"{contract}-{place}")
        for contract, all_planted in VIOLATIONS.items()
        for place, planted in enumerate(all_planted)
    ]


@pytest.mark.parametrize(("contract", "planted"), _cases())
def test_contract_fires(packages: Path, contract: str, planted: Planted) -> None:
    plant(packages, planted)
    done = lint(packages, contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{NAMES[contract]} BROKEN" in " ".join(done.stdout.split())
    if planted.statement != "pass" and contract != "no-tangles":
        assert planted.module in done.stdout, "the answer must name the module that is to blame"
