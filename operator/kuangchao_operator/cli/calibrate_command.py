"""`kuangchao calibrate`: figures of the memory model from measured runs. Offline; changes no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.cli.output import Format, Output, emit_json, table

if TYPE_CHECKING:
    from kuangchao_operator.layers.strategy.footprint.calibration import Calibration

Runs = Annotated[str, typer.Argument(metavar="RUNS.csv", help="Measured runs, one reading a line (docs/planner.md).")]


def calibrate(
    runs: Runs,
    base: Annotated[
        str | None, typer.Option(metavar="FILE", help="Calibration to start from. Default: this release's.")
    ] = None,
    write: Annotated[str | None, typer.Option(metavar="FILE", help="Where to write the calibration.")] = None,
    hold: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A figure to keep as it is; again for more.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Fit the memory model to measured runs; needs no cluster.

    What is fitted are the figures that no arithmetic gives, by framework. Refuses runs that cannot tell two figures
    apart, and says which run would. Give the file to `kuangchao plan --calibration`, and to the operator by the chart's
    value planner.calibration.

    JSON: {version, digest, fit: {baseVersion, baseDigest, runsDigest, runs, groups, constants: [{backend, name, before,
    after}], errorBeforePpm, errorAfterPpm, errorHeldOutPpm}, untouched: [], runs: [{id, group, measuredBytes,
    errorBeforePpm, errorAfterPpm, errorHeldOutPpm}]}
    """
    import hashlib
    from pathlib import Path

    from kuangchao_operator.layers.strategy.fit.decide import fit
    from kuangchao_operator.layers.strategy.fit.reading import runs_of
    from kuangchao_operator.layers.strategy.fit.report import fit_json, run_cells, summary_lines

    raw = Path(runs).read_bytes()
    found = fit(runs_of(_text(runs, raw)), _base(base), hashlib.sha256(raw).hexdigest(), frozenset(hold or ()))
    if write is not None:
        Path(write).write_text(found.calibration.model_dump_json(by_alias=True, exclude_defaults=True, indent=1) + "\n")
    if output is Format.JSON:
        emit_json(fit_json(found))
        return
    print(table(["run", "group", "measured", "before", "after", "held out"], [run_cells(e) for e in found.errors]))
    print("\n".join(summary_lines(found)))
    if write is None:
        typer.echo("not written: --write FILE", err=True)


def _base(path: str | None) -> Calibration:
    from pathlib import Path

    from kuangchao_operator.layers.strategy.footprint import shipped
    from kuangchao_operator.layers.strategy.footprint.calibration import parse

    return shipped.load() if path is None else parse(Path(path).read_bytes(), path)


def _text(path: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(path, None, f"is no UTF-8 text: {error}") from None
