"""What `kuangchao run` needs of this machine. Looks at files and installed packages, imports no framework."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kuangchao_contracts.units import human_bytes
from kuangchao_operator.cli.checks import Check, Verdict

MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 2 * 2**30
MIN_SHM_BYTES = 64 * 2**20
PACKAGES = {"worker": ("torch", "torchdata", "numpy", "scikit-learn")}
"""Packages that `kuangchao run` needs, by the extra that brings them."""


def machine_checks() -> Iterator[Check]:
    """All checks of this machine."""
    yield _python(sys.version_info[:3])
    yield from (_packages(extra, names) for extra, names in PACKAGES.items())
    yield _cores(len(os.sched_getaffinity(0)))
    yield _space("disk", Path.cwd(), MIN_DISK_BYTES, "free space on this disk, or run in another directory (--workdir)")
    yield _space("shared memory", Path("/dev/shm"), MIN_SHM_BYTES, "mount -o remount,size=1G /dev/shm")  # noqa: S108 # looked at only


def _python(found: tuple[int, ...]) -> Check:
    text = ".".join(map(str, found))
    if found >= MIN_PYTHON:
        return Check(name="python", verdict=Verdict.OK, found=text)
    wanted = ".".join(map(str, MIN_PYTHON))
    return Check(
        name="python",
        verdict=Verdict.MISSING,
        found=f"{text}, needs {wanted} or newer",
        mend=f"uv venv --python {wanted}",
    )


def _packages(extra: str, names: tuple[str, ...]) -> Check:
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check(
            name=f"packages[{extra}]",
            verdict=Verdict.MISSING,
            found=f"{', '.join(missing)} not installed",
            mend=f"pip install 'kuangchao[{extra}]'",
        )
    return Check(name=f"packages[{extra}]", verdict=Verdict.OK, found=", ".join(found))


def _cores(count: int) -> Check:
    if count >= 2:
        return Check(name="cores", verdict=Verdict.OK, found=f"{count} usable")
    return Check(
        name="cores",
        verdict=Verdict.WARN,
        found="1 usable: two local ranks share it and take twice as long",
        mend="run on a machine with 2 cores",
    )


def _space(name: str, path: Path, least: int, mend: str) -> Check:
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(name=name, verdict=Verdict.WARN, found=f"{path}: {error.strerror}", mend=mend)
    text = f"{human_bytes(free)} free in {path}"
    if free >= least:
        return Check(name=name, verdict=Verdict.OK, found=text)
    return Check(name=name, verdict=Verdict.MISSING, found=f"{text}, needs {human_bytes(least)}", mend=mend)
