"""Runs a module of the worker in a process of its own: torch has no place in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kuangchao_contracts.errors import UnavailableError

if TYPE_CHECKING:
    import subprocess


def run_module(module: str, arguments: list[str], seconds: int, late: str) -> subprocess.CompletedProcess[str]:
    """How it ended, with what it said. Raises UnavailableError, saying what is `late`, after so many seconds.

    Raises ModuleNotFoundError where torch is not installed.
    """
    import importlib.util
    import subprocess
    import sys

    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("needs torch", name="torch")
    command = [sys.executable, "-m", module, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{late} within {seconds} s") from None


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What it said last of an error, else how it ended."""
    return done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
