"""`kuangchao calibrate`: figures of the memory model from measured runs. Offline; changes no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_operator.cli.output import Format, Output, emit_json, table

if TYPE_CHECKING:
    from kuangchao_operator.layers.strategy.footprint.calibration import Calibration

ARGUMENT = "RUNS.csv"
Runs = Annotated[str, typer.Argument(metavar=ARGUMENT, help="Measured runs, one reading a line (docs/planner.md).")]


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

    from kuangchao_operator.cli.files import as_text, read_bytes, write_text
    from kuangchao_operator.layers.strategy.fit.decide import fit
    from kuangchao_operator.layers.strategy.fit.reading import runs_of
    from kuangchao_operator.layers.strategy.fit.report import fit_json, run_cells, summary_lines

    raw = read_bytes(ARGUMENT, runs)
    found = fit(
        runs_of(as_text(ARGUMENT, runs, raw)), _base(base), hashlib.sha256(raw).hexdigest(), frozenset(hold or ())
    )
    if write is not None:
        text = found.calibration.model_dump_json(by_alias=True, exclude_defaults=True, indent=1)
        write_text("--write", write, f"{text}\n")
    if output is Format.JSON:
        emit_json(fit_json(found))
        return
    print(table(["run", "group", "measured", "before", "after", "held out"], [run_cells(e) for e in found.errors]))
    print("\n".join(summary_lines(found)))
    if write is None:
        typer.echo("not written: --write FILE", err=True)


def _base(path: str | None) -> Calibration:
    from kuangchao_operator.cli.files import read_bytes
    from kuangchao_operator.layers.strategy.footprint import shipped
    from kuangchao_operator.layers.strategy.footprint.calibration import parse

    return shipped.load() if path is None else parse(read_bytes("--base", path), path)
