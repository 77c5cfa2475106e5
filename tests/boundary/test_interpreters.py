"""The planner answers byte for byte alike under every Python that is supported and can be found here."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.boundary.modules import ROOT, load, modules

SUPPORTED = ["3.11", "3.12", "3.13"]
VECTORS = ROOT / "tests/unit/strategy/vectors.py"
UV = Path(sys.executable).with_name("uv")
SECONDS = 100


def interpreter(wanted: str) -> str:
    """A Python of that version: this one, what uv finds, or one of pyenv's, whose shims on PATH may lead nowhere."""
    if wanted == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [str(path) for path in sorted(root.glob(f"versions/{wanted}.*/bin/python"))]
    asked = subprocess.run(
        [UV, "python", "find", "--no-python-downloads", wanted], capture_output=True, text=True, timeout=SECONDS
    )
    found += [asked.stdout.strip()] if asked.returncode == 0 else []
    for path in found:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=SECONDS)
        if told.stdout.startswith(f"Python {wanted}."):
            return path
    pytest.skip(f"no Python {wanted} on this machine")


def answers(python: str, packages: Path | None) -> dict[str, str]:
    """What the planner says there; it needs pydantic, and nothing else of ours or of others."""
    places = [str(ROOT / "contracts"), str(ROOT / "operator"), *([str(packages)] if packages else [])]
    environment = {"PYTHONPATH": os.pathsep.join(places), "PYTHONHASHSEED": "random", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([python, VECTORS], capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_the_planner_needs_no_cluster_no_framework_and_no_keys() -> None:
    others = {"torch", "numpy", "kubernetes", "kopf", "aiohttp", "structlog", "prometheus_client", "duckdb"}
    keys = {"jwt", "cryptography"}
    strategy = [name for name in modules("kuangchao_operator") if name.startswith("kuangchao_operator.layers.strategy")]
    pure = [name for name in strategy if not name.endswith("strategy.service")]
    loaded = load(pure, others | keys | {"yaml", "typer", "rich", "asyncio"})
    assert "kuangchao_operator.layers.strategy.decide" in loaded


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return answers(sys.executable, None)


@pytest.mark.parametrize("wanted", SUPPORTED)
def test_every_python_gives_the_same_bytes(wanted: str, here: dict[str, str], tmp_path: Path) -> None:
    python = interpreter(wanted)
    packages = None
    if python != sys.executable:
        packages = tmp_path / "packages"
        pydantic = f"pydantic=={version('pydantic')}"
        install = [UV, "pip", "install", "-q", "--python", python, "--target", packages, pydantic]
        done = subprocess.run(install, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            pytest.skip(f"no {pydantic} for Python {wanted} to be had here: {done.stderr.strip()[-200:]}")
    assert answers(python, packages) == here
