"""`python -m bench.planner [--truth CSV] [--json] [--worst N]`: memory, step time and choice of plan against rows that
others published.

Exit status 2 when the file is no truth file; how well the model does is in the output, not in the status.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.planner.rows import BadTruthError, read
from bench.planner.score import Answer, answer, summary
from bench.planner.sources import source_of
from bench.planner.steps import targets
from bench.report import show
from kuangchao_operator.layers.strategy.footprint.shipped import load
from kuangchao_operator.layers.strategy.timing.shipped import load as load_hardware

SHIPPED = Path(__file__).parent.parent / "data" / "planner_truth.csv"


def main(arguments: list[str]) -> int:
    """Score every row of the file."""
    options = _options(arguments)
    try:
        rows = read(options.truth)
    except (OSError, BadTruthError) as error:
        print(error, file=sys.stderr)
        return 2
    calibration = load()
    hardware = load_hardware()
    answers = [answer(row, calibration, hardware) for row in rows]
    versions = {"calibrationVersion": calibration.version, "hardwareVersion": hardware.version}
    found = {**versions, **summary(answers)}
    if options.json:
        print(json.dumps({"rows": [a.record() for a in answers], "summary": found}, indent=1))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(_worst(answers, options.worst))
    console.print(_worst_steps(answers, options.worst))
    show(targets([(a.row, a.step) for a in answers if a.step is not None]), console)
    console.print_json(json.dumps(found))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description=__doc__)
    parser.add_argument("--truth", type=Path, default=SHIPPED, metavar="CSV", help="default: the rows in bench/data")
    parser.add_argument("--json", action="store_true", help="rows and summary as JSON")
    parser.add_argument("--worst", type=int, default=15, metavar="N", help="rows to show, those with most error first")
    return parser.parse_args(arguments)


def _worst(answers: list[Answer], number: int) -> Table:
    table = Table(
        "id", "model", "figure", "measured GiB", "model GiB", "error", title="furthest from what was measured"
    )
    known = [(error, a) for a in answers if (error := a.error()) is not None]
    for error, one in sorted(known, key=lambda pair: -abs(pair[0]))[:number]:
        figure, peak = one.figure(), one.row.real("peak_mem_gib")
        kind = source_of(one.row).figure.value
        table.add_row(one.row.id, one.row.text("model")[:48], kind, f"{peak:.2f}", f"{figure:.2f}", f"{error:+.1%}")
    return table


def _worst_steps(answers: list[Answer], number: int) -> Table:
    table = Table("id", "model", "measured s", "model s", "error", title="steps furthest from what was measured")
    known = [(error, a.row, a.step) for a in answers if a.step is not None and (error := a.step.error) is not None]
    for error, row, step in sorted(known, key=lambda found: -abs(found[0]))[:number]:
        table.add_row(row.id, row.text("model")[:48], f"{step.measured:.3f}", f"{step.seconds:.3f}", f"{error:+.1%}")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
