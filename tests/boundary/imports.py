"""A copy of the three packages in which import contracts can be broken on purpose."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "kuangchao_contracts": "contracts",
    "kuangchao_operator": "operator",
    "kuangchao_worker": "worker",
}


class Planted(NamedTuple):
    """`statement` written at the end of `module`; a module that does not exist is made."""

    module: str
    statement: str


def copy_packages(target: Path) -> None:
    """The packages and the contracts, as they stand in the checkout."""
    for package, folder in PACKAGES.items():
        source = ROOT / folder / package
        shutil.copytree(source, target / folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)


def plant(target: Path, planted: Planted) -> None:
    """Add the import to the copy."""
    path = target / PACKAGES[planted.module.split(".")[0]] / Path(*planted.module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    before = file.read_text() if file.exists() else '"""Planted."""\n'
    file.write_text(f"{before}\n{planted.statement}\n")


def lint(target: Path, contract: str) -> subprocess.CompletedProcess[str]:
    """Run one contract on the copy."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--contract", contract]
    path = ":".join(str(target / folder) for folder in PACKAGES.values())
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=target, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
