"""The wheel, built from the checkout and unpacked: what a user gets who has no checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(target: Path, project: Path = ROOT) -> Path:
    """Build the wheel of a project into a folder, with what is installed."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("*.whl"))


def unpack(wheel: Path, target: Path) -> Path:
    """What an installer puts into site-packages."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target
