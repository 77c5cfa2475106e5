"""`python -m bench`: measure, print a table, write JSON. Exit status 1 only when a suite broke, whatever came out."""

import argparse
import importlib
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench import report
from bench.figures import Figure

SUITES = ("executor", "operator", "authority", "audit", "auditproof", "compression", "worker")
BY_NAME = ("commands",)
"""Suites that run only when they are asked for."""


def main(arguments: list[str]) -> int:
    """Run the suites. A suite that breaks leaves the figures of the others standing."""
    options = _options(arguments)
    console, errors = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    before, started = report.machine(), time.monotonic()
    figures: list[Figure] = []
    broken = []
    for suite in options.only:
        errors.print(f"measuring: {suite}")
        try:
            figures += importlib.import_module(f"bench.{suite}").measure(quick=options.quick)
        except Exception as error:  # noqa: BLE001 - said below, and by the exit status
            broken.append(suite)
            errors.print(f"{suite}: {type(error).__name__}: {error}", markup=False)
    report.show(figures, console)
    console.print(report.footer(before), markup=False, highlight=False)
    report.write(options.json, figures, before, time.monotonic() - started)
    errors.print(f"written: {options.json}")
    return 1 if broken else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: does it run, not how fast")
    parser.add_argument(
        "--only", type=_suites, default=SUITES, metavar="NAMES", help=f"of {','.join(SUITES + BY_NAME)}"
    )
    parser.add_argument("--json", type=Path, default=report.default_path(datetime.now(UTC)), metavar="FILE")
    return parser.parse_args(arguments)


def _suites(value: str) -> list[str]:
    names = value.split(",")
    for name in names:
        if name not in SUITES + BY_NAME:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SUITES + BY_NAME)}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
