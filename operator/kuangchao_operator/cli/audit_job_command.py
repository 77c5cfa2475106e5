"""`kuangchao audit job`: what a job did, in order, from the audit store and its ranks' operation logs. Reads only."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_operator.cli.audit_source import asking, existing, records
from kuangchao_operator.cli.job_timeline import show, timeline
from kuangchao_operator.cli.options import RELEASE_NAMESPACE, Context, ReleaseNamespace, point_in_time
from kuangchao_operator.cli.output import FAILED, Format, Output, emit_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from kuangchao_operator.audit.joblogs import JobLogs
    from kuangchao_operator.audit.jobtrail import JobTrail


def job(
    name: Annotated[str | None, typer.Argument(metavar="NS/NAME", show_default=False, help="The TrainingJob.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Its checkpoint directory, or the volume that holds it: checks operation logs.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Read an audit directory of this machine instead of the cluster's.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="A local run, runs/<job>-<time>: its audit and its logs.")] = None,
    uid: Annotated[str | None, typer.Option(help="Which of several jobs of this name; default: the last.")] = None,
    since: Annotated[str | None, typer.Option(help="Not before: 90d or RFC 3339; default: 31 days.")] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Every step call, not only how many there were.")] = False,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Every control call with its token, and the step calls of every rank, as far as the store pins them.

    Exits 1 and names file and line when a log, or the audit directory, is not what was recorded. What came after the
    last commit of an attempt is declared lost, with its length.

    JSON: {"job", "uid", "others": [uid], "ok", "problems": [text], "notes": [text], "logs": bool,
    "timeline": [{"kind": "call", seq, time, attempt, operation, subject, token, result, reason, detail, count, process}
    | {"kind": "steps" or "lost", attempt, rank, firstLine, lastLine, began, ended, firstStep, lastStep,
    operations: {name: count}, denied, grace, pinnedBy: {seq, step} or null, bound, fault}
    | {"kind": "step", attempt, rank, line, time, operation, subject, step, denied, grace}]}
    """
    from kuangchao_contracts.audit import AuditQuery
    from kuangchao_operator.audit.joblogs import JobLogs, job_folders, read_logs
    from kuangchao_operator.audit.jobtrail import trail

    start = point_in_time("--since", since, datetime.now(UTC))
    resource, directory = _about(name, run), _directory(directory, run)
    damage = _whole(directory)
    with asking(directory, context, release_namespace) as ask:
        try:
            found = trail(records(ask, AuditQuery(resource=resource, since=start)), uid)
        except (ValueError, TypeError):
            raise StorageError("; ".join(damage) or "the store holds a record that cannot be read") from None
    if not found.calls:
        raise InvalidInputError("job", name or str(run), "is not in the record; is the name right, or --since?")
    folders = _folders(checkpoints, run, found.uid, job_folders)
    logs = read_logs(folders, found.commits, lines=steps) if folders else JobLogs()
    problems = [*damage, *logs.problems]
    answer = _answer(resource, found, logs, problems, looked=bool(folders), steps=steps)
    if output is Format.JSON:
        emit_json(answer)
    else:
        show(answer)
    if problems:
        raise typer.Exit(FAILED)


# ---- where things are


def _about(name: str | None, run: Path | None) -> str:
    """The resource that the records are about. Raises InvalidInputError."""
    if run is not None:
        try:
            metadata = json.loads((run / "status.json").read_bytes())["metadata"]
        except (OSError, ValueError, KeyError):
            raise InvalidInputError(
                "--run", str(run), "is not the directory of a local run", "runs/<job>-<time>"
            ) from None
        name = name or f"{metadata['namespace']}/{metadata['name']}"
    namespace, slash, job = (name or "").partition("/")
    if not (namespace and slash and job) or "/" in job:
        raise InvalidInputError("job", name, "must be <namespace>/<name>", "default/digits")
    return f"{namespace}/jobs/{job}"


def _directory(directory: Path | None, run: Path | None) -> Path | None:
    return existing(directory or (run / "audit" if run is not None else None))


def _folders(
    checkpoints: Path | None, run: Path | None, uid: str, find: Callable[[Path, str], list[Path]]
) -> list[Path]:
    """Where operation logs of the job may lie."""
    given = checkpoints or (run / "checkpoints" if run is not None else None)
    if given is None:
        return []
    try:
        folders = find(given, uid)
    except StorageError as error:
        raise InvalidInputError("--checkpoints", str(given), str(error)) from None
    return [*folders, *(sorted(run.glob("pods/*/run")) if run is not None else [])]


# ---- the store


def _whole(directory: Path | None) -> list[str]:
    """What is wrong with the audit directory itself. A cluster's store is checked by `audit verify`."""
    if directory is None:
        return []
    from kuangchao_operator.audit.verify import verify

    return [f"audit store: {problem}" for problem in verify(directory).problems]


# ---- the answer


def _answer(
    resource: str, found: JobTrail, logs: JobLogs, problems: list[str], *, looked: bool, steps: bool
) -> dict[str, Any]:
    namespace, _, name = resource.split("/")
    notes = list(logs.notes)
    if not looked:
        notes.append("operation logs were not looked at: --checkpoints says where they are")
    elif not found.commits:
        notes.append("no checkpoint was committed, so nothing that ranks did is pinned")
    return {
        "job": f"{namespace}/{name}",
        "uid": found.uid,
        "others": list(found.others),
        "ok": not problems,
        "problems": problems,
        "notes": notes,
        "logs": looked,
        "timeline": list(timeline(found, logs, steps=steps)),
    }
