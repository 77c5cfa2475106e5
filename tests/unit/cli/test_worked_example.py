"""The worked example of the memory estimate, as the command line shows it to anybody."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kuangchao_operator.cli.main import app

EXAMPLE = Path(__file__).parents[3] / "examples/plan"
LINES = [
    "parameters: 7,000,000,000 x 2 B (fp16-pure) = 14,000,000,000 B (13.0 GiB)",
    "gradients: 7,000,000,000 x 2 B = 14,000,000,000 B (13.0 GiB)",
    "optimizer: 7,000,000,000 x 8 B (adam) = 56,000,000,000 B (52.2 GiB)",
    "states: 14.00 + 14.00 + 56.00 = 84.00 GB",
]


def plan(*options: str) -> Result:
    files = [str(EXAMPLE / "seven-billion.yaml"), "--resources", str(EXAMPLE / "b200.yaml")]
    return CliRunner().invoke(app, ["plan", *files, *options])


@pytest.mark.parametrize(("options", "status"), [(["--what-if"], 0), ([], 3)])
def test_seven_billion_in_fp16_with_adam_are_84_gb_line_by_line(options: list[str], status: int) -> None:
    """As a plan for a worker to come, and with the refusal of the one there is."""
    done = plan(*options)
    assert done.exit_code == status
    shown = [line.strip() for line in done.stdout.splitlines()]
    start = shown.index(LINES[0])
    assert shown[start : start + len(LINES)] == LINES


def test_programs_get_the_same_sizes() -> None:
    stage = json.loads(plan("-o", "json").stdout)["memory"]["stages"][0]
    sizes = (stage["parametersBytes"], stage["gradientsBytes"], stage["optimizerBytes"])
    assert sizes == (14 * 10**9, 14 * 10**9, 56 * 10**9)
    assert stage["arithmetic"][: len(LINES)] == LINES
