"""Commands on TrainingJobs in a cluster: get, describe, why, suspend, resume, delete. Only spec fields of the user."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.reasons import ConditionType, Phase, Reason
from kuangchao_operator.cli.options import Context, Job, Namespace
from kuangchao_operator.cli.output import DONE, FAILED, REFUSED, Format, Output, emit_json, table

if TYPE_CHECKING:
    from kuangchao_contracts.api import TrainingJob
    from kuangchao_operator.cli.cluster import Cluster

ENDED = (Phase.COMPLETE, Phase.FAILED)
NEVER = (
    Reason.INFEASIBLE,
    Reason.CONTRADICTORY_PLAN,
    Reason.INVALID_SPEC,
    Reason.EXCEEDS_MAX_QUOTA,
    Reason.NAME_TOO_LONG,
    Reason.RELEASE_NAMESPACE,
    Reason.FORBIDDEN,
)
"""Reasons of a stalled job that waiting does not cure: only an edit of the job does."""
WATCH_SECONDS = 1.0


class JobEndedError(KuangchaoError):
    """The job is over; nothing can be changed about it."""


class TimedOutError(KuangchaoError):
    """The wait is over and the job is not."""


def get(
    job: Annotated[
        str | None, typer.Argument(help="Name of a TrainingJob; all when left out.", show_default=False)
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of every namespace.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow one job to its end.")] = False,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds that --watch waits.")] = 86_400,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
) -> None:
    """List jobs, or follow one to its end with --watch.

    The columns are those of kubectl. --watch exits 0 when the job completes, 1 when it fails, is out of restarts or
    --timeout passes, 3 when no plan can ever fit.

    JSON: the TrainingJob objects as the API server has them: {"items": [...]}, or one object when a job is named.
    """
    from kuangchao_operator.cli.cluster import Cluster

    if watch and job is None:
        raise InvalidInputError("--watch", True, "needs the name of a job", "kuangchao get JOB --watch")
    if all_namespaces and job is not None:
        raise InvalidInputError("--all-namespaces", True, f"cannot stand beside the name {job}", "--namespace")
    cluster = Cluster(context, namespace)
    if watch and job is not None:
        raise typer.Exit(_watch(cluster, job, timeout, output))
    jobs = [cluster.job(job)] if job else cluster.jobs(None if all_namespaces else cluster.namespace)
    if output is Format.JSON:
        emit_json(jobs[0].wire() if job else {"items": [item.wire() for item in jobs]})
        return
    if not jobs:
        typer.echo(f"No TrainingJobs found{'' if all_namespaces else f' in namespace {cluster.namespace}'}.", err=True)
        return
    from kuangchao_operator.cli.present import job_header, job_row

    now = datetime.now(UTC)
    print(table(job_header(all_namespaces), [job_row(item, now, all_namespaces) for item in jobs]))


def _watch(cluster: Cluster, name: str, timeout: float, output: Format) -> int:
    from kuangchao_operator.cli.progress import progress_view

    deadline = time.monotonic() + timeout
    with progress_view(quiet=output is Format.JSON) as view:
        while True:
            job = cluster.job(name)
            view.update(job)
            code = verdict(job)
            if code is not None:
                break
            if time.monotonic() > deadline:
                raise TimedOutError(f"job {name} has not ended in {timeout} s; it goes on (kuangchao why {name})")
            time.sleep(WATCH_SECONDS)
    if output is Format.JSON:
        emit_json(job.wire())
    else:
        from kuangchao_operator.cli.present import final_lines

        print("\n".join(final_lines(job)))
    return code


def verdict(job: TrainingJob) -> int | None:
    """Exit code for a job that will not go on by itself; None while it may."""
    status = job.status
    if status is None:
        return None
    if status.phase is Phase.COMPLETE:
        return DONE
    if status.phase is Phase.FAILED or reason_of(job, ConditionType.SUSPENDED) == Reason.RESTART_LIMIT_EXCEEDED:
        return FAILED
    return REFUSED if reason_of(job, ConditionType.STALLED) in NEVER else None


def reason_of(job: TrainingJob, kind: ConditionType) -> str | None:
    """Reason of a condition that is true now."""
    conditions = job.status.conditions if job.status else ()
    return next((c.reason for c in conditions if c.type == kind and c.status == "True"), None)


def describe(job: Job, namespace: Namespace = None, context: Context = None, output: Output = Format.TEXT) -> None:
    """Show a job's plan, conditions, attempts and checkpoints.

    JSON: {"job": TrainingJob, "plan": ParallelPlan or null}
    """
    from kuangchao_operator.cli.cluster import Cluster, NotFoundError
    from kuangchao_operator.cli.present import describe_job

    cluster = Cluster(context, namespace)
    found = cluster.job(job)
    plan = None
    if found.status is not None and found.status.plan_name:
        try:
            plan = cluster.plan(found.status.plan_name).spec.plan
        except NotFoundError:  # a finished job may outlive its plan
            plan = None
    if output is Format.JSON:
        emit_json({"job": found.wire(), "plan": plan.wire() if plan else None})
    else:
        print("\n".join(describe_job(found, plan, datetime.now(UTC))))


def why(job: Job, namespace: Namespace = None, context: Context = None, output: Output = Format.TEXT) -> None:
    """Say why a job waits or has stopped, and what to do.

    What it needs, what is free, and who holds the rest.

    JSON: {"job", "phase", "reason", "message", "pool", "need", "free", "total", "reserved", "quota", "position",
    "ahead": [], "holders": [{job, devices}], "unhealthy": [], "advice", "lines": [...]}
    """
    from kuangchao_operator.cli.cluster import Cluster
    from kuangchao_operator.cli.why import explain_job, lines

    cluster = Cluster(context, namespace)
    found = cluster.job(job)
    answer, lacking = explain_job(cluster, found)
    text = list(lines(found, answer))
    if output is Format.JSON:
        emit_json({"job": job, **answer.model_dump(mode="json", by_alias=True), "lines": text})
    else:
        print("\n".join(text))
    if lacking:
        typer.echo(lacking, err=True)


def suspend(job: Job, namespace: Namespace = None, context: Context = None, output: Output = Format.TEXT) -> None:
    """Stop a job and free its devices; its checkpoints stay.

    JSON: the TrainingJob after the change.
    """
    from kuangchao_operator.cli.cluster import Cluster

    cluster = Cluster(context, namespace)
    found = _not_ended(cluster.job(job))
    after = found if found.spec.suspend else cluster.patch_job(job, {"suspend": True})
    _changed(after, "already suspended" if found.spec.suspend else "suspended", output)


def resume(job: Job, namespace: Namespace = None, context: Context = None, output: Output = Format.TEXT) -> None:
    """Let a suspended job go on from its newest checkpoint.

    A job that ran out of restarts gets a new budget.

    JSON: the TrainingJob after the change.
    """
    from kuangchao_operator.cli.cluster import Cluster

    cluster = Cluster(context, namespace)
    after, changed = resumed(cluster, job)
    _changed(after, "resumed" if changed else "not suspended", output)


def resumed(cluster: Cluster, name: str) -> tuple[TrainingJob, bool]:
    """The job once resume has changed it, and whether it did.

    The change is bound to what was read, since two people who resume at once grant one budget and not two; the
    operator's word in between, which changes no spec, is no such conflict.
    """
    from kuangchao_contracts.errors import ConflictError

    found = _not_ended(cluster.job(name))
    while change := resume_change(found):
        try:
            return cluster.patch_job(name, change, found.metadata.resource_version), True
        except ConflictError:
            before, found = found, _not_ended(cluster.job(name))
            if (found.metadata.uid, found.metadata.generation) != (before.metadata.uid, before.metadata.generation):
                raise
    return found, False


def resume_change(job: TrainingJob) -> dict[str, object]:
    """Fields of the spec that resume changes; empty when the job is not suspended."""
    change: dict[str, object] = {}
    if job.spec.suspend:
        change["suspend"] = False
    if reason_of(job, ConditionType.SUSPENDED) == Reason.RESTART_LIMIT_EXCEEDED:
        change["retryGeneration"] = max(job.spec.retry_generation, job.status.retry_generation if job.status else 0) + 1
    return change


def delete(
    job: Job,
    wait: Annotated[bool, typer.Option(help="Wait until the job is gone.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait.")] = 300,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
) -> None:
    """Delete a job; files on its checkpoint volume stay.

    Its pods end, its devices are freed, its tokens die.

    JSON: {"job", "deleted": true when it is gone, false when only asked for}
    """
    from kuangchao_operator.cli.cluster import Cluster

    cluster = Cluster(context, namespace)
    uid = cluster.job(job).metadata.uid
    cluster.delete_job(job)
    gone = wait and _wait_gone(cluster, job, uid, timeout)
    if output is Format.JSON:
        emit_json({"job": job, "deleted": gone})
    else:
        print(f"trainingjob.kuangchao.io/{job} {'deleted' if gone else 'is being deleted'}")


def _wait_gone(cluster: Cluster, name: str, uid: str, timeout: float) -> bool:
    from kuangchao_operator.cli.cluster import NotFoundError

    deadline = time.monotonic() + timeout
    while True:
        try:
            if cluster.job(name).metadata.uid != uid:
                return True
        except NotFoundError:
            return True
        if time.monotonic() > deadline:
            raise TimedOutError(
                f"job {name} is not gone after {timeout} s: is the operator running? (kuangchao doctor)"
            )
        time.sleep(WATCH_SECONDS)


def _not_ended(job: TrainingJob) -> TrainingJob:
    if job.status is not None and job.status.phase in ENDED:
        raise JobEndedError(
            f"job {job.metadata.name} is {job.status.phase}; delete it and apply it again to run it again"
        )
    return job


def _changed(job: TrainingJob, what: str, output: Format) -> None:
    if output is Format.JSON:
        emit_json(job.wire())
    else:
        print(f"trainingjob.kuangchao.io/{job.metadata.name} {what}")
