"""`--simulate` of `kuangchao plan`: which drawing, and where it goes. Works nothing out itself."""

from __future__ import annotations

import shutil
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.cli.files import write_text
from kuangchao_operator.cli.output import Format, writes_unicode

if TYPE_CHECKING:
    from kuangchao_operator.layers.strategy.schedule.simulation import Simulation

OPTION = "--simulate"


class Drawing(StrEnum):
    """What `--simulate` draws."""

    TERMINAL = "terminal"
    SVG = "svg"
    CHROME = "chrome"


Simulate = Annotated[
    Drawing | None,
    typer.Option(
        OPTION,
        help="Run one step and draw it: as text (also without a value), as SVG, or as a trace for Perfetto and "
        "chrome://tracing. --simulate=svg and --simulate=chrome print the drawing alone.",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="FILE", help="Where the drawing of --simulate goes. Default: stdout.")
]


class SimulatingCommand(TyperCommand):
    """A command whose `--simulate` may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--simulate` its value before the arguments are read."""
        return super().parse_args(ctx, [f"{OPTION}={Drawing.TERMINAL}" if arg == OPTION else arg for arg in args])


def check(drawing: Drawing | None, to: str | None, output: Format) -> None:
    """Refuse options that contradict each other, before anything is worked out. Raises InvalidInputError."""
    if to is not None and drawing is None:
        raise InvalidInputError("--to", to, "is where the drawing of --simulate goes", f"{OPTION}=svg --to {to}")
    if drawing in (Drawing.SVG, Drawing.CHROME) and to is None and output is Format.JSON:
        raise InvalidInputError("--output", output.value, f"{OPTION}={drawing} prints to stdout too", "--to FILE")


def alone(drawing: Drawing | None, to: str | None) -> bool:
    """Whether the drawing is all that goes to stdout."""
    return drawing in (Drawing.SVG, Drawing.CHROME) and to is None


def draw(step: Simulation, drawing: Drawing, to: str | None, output: Format) -> None:
    """Write the drawing to a file, or to stdout unless that is taken by JSON."""
    if to is not None:
        write_text("--to", to, _text(step, drawing, plain=False))
    elif output is not Format.JSON:
        print(_text(step, drawing, plain=not writes_unicode()).rstrip("\n"))


def _text(step: Simulation, drawing: Drawing, *, plain: bool) -> str:
    from kuangchao_operator.layers.strategy.schedule.chrome import render_chrome
    from kuangchao_operator.layers.strategy.schedule.svg import render_svg
    from kuangchao_operator.layers.strategy.schedule.terminal import render_terminal

    if drawing is Drawing.SVG:
        return render_svg(step)
    if drawing is Drawing.CHROME:
        return f"{render_chrome(step)}\n"
    return f"{render_terminal(step, shutil.get_terminal_size().columns, plain=plain)}\n"
