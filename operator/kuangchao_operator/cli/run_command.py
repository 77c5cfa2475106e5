"""`kuangchao run`: hands a manifest to the local runner and shows how it goes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.reasons import Phase
from kuangchao_operator.cli.job_commands import NEVER
from kuangchao_operator.cli.output import DONE, FAILED, INTERRUPTED, REFUSED, Format, Output, emit_json
from kuangchao_operator.cli.plan_command import Devices, File, with_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kuangchao_operator.local.result import RunResult


def run(
    file: File,
    workdir: Annotated[Path, typer.Option(help="Where ./runs/<job>-<time> is made.")] = Path(),
    devices: Devices = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on from the newest checkpoint of an earlier run of this job: its directory, runs/<job>-<time>.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Train with processes of this machine, without a cluster.

    Manifest, planner, gate, restarts and audit are those of a cluster. Checkpoints, audit and output of all ranks are
    kept in ./runs/<job>-<time>. Ctrl-C saves a checkpoint, where the manifest has spec.checkpoint.storage, and --resume
    goes on from there. Exits 1 when the job fails, 3 when no plan fits, 130 after Ctrl-C or SIGTERM.

    JSON: {"job", "phase", "plan", "attempts", "restarts", "steps", "metrics": {name: text}, "failure": {...} or null,
    "checkpoints": [...], "audit": {"records", "denied", "operations": {op: count}}, "directory"}
    """
    from kuangchao_operator.cli.manifest import read_job
    from kuangchao_operator.cli.progress import progress_view
    from kuangchao_operator.local.runner import run_job

    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    job = with_devices(read_job(file), devices)
    with progress_view(quiet=output is Format.JSON) as view:
        result = run_job(job, workdir, view, resume)
    if output is Format.JSON:
        emit_json(result.model_dump(mode="json", by_alias=True))
    else:
        print("\n".join(summary(result)))
    raise typer.Exit(exit_code(result))


def exit_code(result: RunResult) -> int:
    """130 when a person ended it, 0 when it completed, 3 when no plan fits, else 1."""
    if result.interrupted:
        return INTERRUPTED
    if result.phase is Phase.COMPLETE:
        return DONE
    return REFUSED if result.reason in NEVER else FAILED


def summary(result: RunResult) -> Iterator[str]:
    """How the run ended, what the audit store says of it and, last, the figure people look for."""
    from kuangchao_operator.cli.present import failure_lines, metric_lines

    ended = "interrupted" if result.interrupted else str(result.phase)
    yield (
        f"{result.job}: {ended} after {result.steps} steps; attempts {result.attempts}, restarts {result.restarts}, "
        f"checkpoints kept {len(result.checkpoints)}"
    )
    if result.phase is not Phase.COMPLETE and not result.interrupted:
        yield f"{result.reason}: {result.message}"
    yield from failure_lines("first failure", result.failure)
    calls = ", ".join(f"{op} {count}" for op, count in sorted(result.audit.operations.items()))
    yield f"audit: {result.audit.records} records, {result.audit.denied} denied; {calls or 'no calls'}"
    yield f"files: {result.directory}"
    if result.interrupted and result.checkpoints:
        yield f"go on with: --resume {result.directory}"
    yield from metric_lines(result.metrics)
