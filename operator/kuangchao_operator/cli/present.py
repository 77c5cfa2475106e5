"""Jobs and plans as text for people. Values in, lines out; nothing is looked up or decided here."""

from collections.abc import Iterator
from datetime import datetime

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import Failure, TrainingJobStatus
from kuangchao_contracts.plan import ParallelPlan, PlanOutcome
from kuangchao_contracts.reasons import Phase
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.cli.output import age


def job_header(with_namespace: bool) -> tuple[str, ...]:
    """Names of the columns of `get`: those of kubectl."""
    names = ("name", *(column.name for column in TrainingJob.columns if column.priority == 0))
    return ("namespace", *names) if with_namespace else names


def job_row(job: TrainingJob, now: datetime, with_namespace: bool) -> tuple[str, ...]:
    """A job as a line of `get`."""
    status = job.status or TrainingJobStatus()
    cells = (
        job.metadata.name,
        status.phase.value,
        status.plan_summary or "",
        status.ready,
        status.restart_budget,
        status.progress_text,
        age(job.metadata.creation_timestamp, now),
    )
    return (job.metadata.namespace or "", *cells) if with_namespace else cells


def final_lines(job: TrainingJob) -> Iterator[str]:
    """How a job ended: phase, last figures, first failure."""
    status = job.status or TrainingJobStatus()
    yield f"{job.metadata.name}: {status.phase}"
    if status.phase is not Phase.COMPLETE:
        yield from failure_lines("first failure", status.first_failure)
    if status.progress is not None:
        yield from metric_lines(status.progress.metrics)


def metric_lines(metrics: dict[str, str]) -> Iterator[str]:
    """The reported figures, accuracy last because people look for it."""
    for name in sorted(metrics, key=lambda item: (item == "accuracy", item)):
        yield f"{name} {number(metrics[name])}"


def number(text: str) -> str:
    """A decimal text with at most four places, cut towards the value that does not flatter: 0.95996 -> 0.9599."""
    whole, dot, places = text.partition(".")
    return whole + dot + places[:4] if dot and places.isdecimal() else text


def describe_job(job: TrainingJob, plan: ParallelPlan | None, now: datetime) -> Iterator[str]:
    """Everything worth knowing of a job."""
    status = job.status or TrainingJobStatus()
    yield from _head(job, status, now)
    yield from _plan(plan, status)
    yield from _conditions(status, now)
    yield from _attempts(job, status)
    yield from failure_lines("first failure", status.first_failure)
    if status.last_failure != status.first_failure:
        yield from failure_lines("last failure", status.last_failure)
    yield from memory_lines(status)
    yield from _checkpoints(status, now)
    yield from _people(job)


def _head(job: TrainingJob, status: TrainingJobStatus, now: datetime) -> Iterator[str]:
    spec = job.spec
    yield f"Name:       {job.metadata.name}"
    yield f"Namespace:  {job.metadata.namespace}"
    yield f"State:      {status.phase}"
    yield f"Pool:       {spec.pool} ({spec.priority})"
    yield f"Devices:    {spec.devices.count} in pods of {spec.devices.per_pod}"
    yield f"Program:    {spec.task or ' '.join(('torchrun', *(spec.command or ())))}"
    yield f"Age:        {age(job.metadata.creation_timestamp, now)}"
    if status.progress is not None:
        eta = f", about {status.progress.eta_seconds} s left" if status.progress.eta_seconds is not None else ""
        done = status.progress
        of = f" of {done.total_steps} ({done.percent} %)" if done.total_steps else ""
        yield f"Progress:   step {done.step}{of}{eta}"
        for line in metric_lines(status.progress.metrics):
            yield f"            {line}"


def _plan(plan: ParallelPlan | None, status: TrainingJobStatus) -> Iterator[str]:
    if plan is None:
        yield f"Plan:       {status.plan_summary or 'none yet'}"
        return
    from kuangchao_operator.layers.strategy.explain import render_plan

    yield f"Plan:       {status.plan_name}"
    yield from (f"  {line}" for line in render_plan(PlanOutcome(plan=plan)).splitlines())


def _conditions(status: TrainingJobStatus, now: datetime) -> Iterator[str]:
    yield "Conditions:"
    for condition in status.conditions:
        since = age(condition.last_transition_time, now)
        head = f"  {condition.type:<14} {condition.status:<8} {since:>5}"
        yield f"{head}  {condition.reason}  {condition.message}".rstrip()


def _attempts(job: TrainingJob, status: TrainingJobStatus) -> Iterator[str]:
    limit = job.spec.fault.max_restarts
    yield f"Attempts:   {status.attempt} (incarnation {status.incarnation} of the pods)"
    yield f"Restarts:   {status.restarts} of {limit}; {status.infrastructure_restarts} by the platform do not count"
    for share in status.allocation:
        yield f"  node {share.node}: {share.devices} devices, pods {share.pods}"
    if status.avoid_nodes:
        yield f"  avoided nodes: {', '.join(status.avoid_nodes)}"


def failure_lines(title: str, failure: Failure | None) -> Iterator[str]:
    """A failure with where and when it happened."""
    if failure is None:
        return
    places = [
        f"rank {failure.rank}" if failure.rank is not None else "",
        f"pod {failure.pod}" if failure.pod else "",
        f"node {failure.node}" if failure.node else "",
        f"exit code {failure.exit_code}" if failure.exit_code is not None else "",
        f"step {failure.step}" if failure.step is not None else "",
        f"attempt {failure.attempt}",
    ]
    yield f"{title[:1].upper()}{title[1:]}: {failure.reason} ({', '.join(filter(None, places))})"
    if failure.peak_memory_bytes is not None:
        limit = f" of {human_bytes(failure.memory_limit_bytes)}" if failure.memory_limit_bytes is not None else ""
        where = f", section {failure.section}" if failure.section else ""
        yield f"  peak {human_bytes(failure.peak_memory_bytes)}{limit}{where}"
    yield from (f"  {line}" for line in failure.message.splitlines())


def memory_lines(status: TrainingJobStatus | None) -> Iterator[str]:
    """Plans that did not fit, with what was measured and what had been estimated."""
    failures = status.out_of_memory if status is not None else ()
    if failures:
        yield "Plans that ran out of memory:"
    for failure in failures:
        guess = "nothing" if failure.estimated_bytes is None else human_bytes(failure.estimated_bytes)
        where = f"attempt {failure.attempt}, step {failure.step}"
        yield f"  {failure.plan} ({where}): measured {human_bytes(failure.measured_bytes)}, estimated {guess}"


def _checkpoints(status: TrainingJobStatus, now: datetime) -> Iterator[str]:
    yield "Checkpoints:" if status.checkpoints else "Checkpoints: none"
    for ref in status.checkpoints:
        yield f"  step {ref.step}  attempt {ref.attempt}  {age(ref.time, now)}  {ref.path}  sha256:{ref.digest[:12]}"


def _people(job: TrainingJob) -> Iterator[str]:
    access = job.spec.access
    yield f"Owner:      {access.owner or 'not set: Kubernetes RBAC alone decides'}"
    if access.collaborators:
        yield f"Collaborators: {', '.join(access.collaborators)}"
    if access.viewers:
        yield f"Viewers:    {', '.join(access.viewers)}"
