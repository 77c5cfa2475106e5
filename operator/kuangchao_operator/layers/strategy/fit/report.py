"""A fit as people and programs read it. Pure."""

from typing import Any

from kuangchao_operator.layers.strategy.fit.decide import Outcome, RunError
from kuangchao_operator.layers.strategy.shown import percent, signed


def fit_json(outcome: Outcome) -> dict[str, Any]:
    """For programs; errors are in millionths of what was measured, signed."""
    return {
        "version": outcome.calibration.version,
        "digest": outcome.calibration.content_hash(),
        "fit": outcome.fit.wire(),
        "untouched": list(outcome.untouched),
        "runs": [
            {
                "id": error.run.name,
                "group": error.run.group,
                "measuredBytes": error.run.measured,
                "errorBeforePpm": error.before,
                "errorAfterPpm": error.after,
                "errorHeldOutPpm": error.held_out,
            }
            for error in outcome.errors
        ],
    }


def run_cells(error: RunError) -> list[str]:
    """A run as cells of a table: name, group, what was measured, error before, after and held out."""
    run = error.run
    measured = f"{run.measured / 2**30:.2f} GiB {run.figure.value}"
    return [run.name, run.group, measured, *(signed(e) for e in (error.before, error.after, error.held_out))]


def summary_lines(outcome: Outcome) -> list[str]:
    """What changed, what did not, and how far off the fit is on average."""
    fit = outcome.fit
    lines = [f"{one.backend} {one.name}: {one.before:,} -> {one.after:,}" for one in fit.constants]
    if outcome.untouched:
        lines.append(f"Kept, no run depends on them: {', '.join(outcome.untouched)}")
    lines.append(
        f"Mean error of {fit.runs} runs: {percent(fit.error_before_ppm)} before,"
        f" {percent(fit.error_after_ppm)} after, {percent(fit.error_held_out_ppm)} when a run's group"
        f" ({fit.groups} groups) is held out"
    )
    return lines
