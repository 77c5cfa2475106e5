"""`kuangchao logs`: output of a pod or rank, also across restarts and new incarnations. Reads only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError, UnavailableError
from kuangchao_contracts.names import pod_name
from kuangchao_contracts.reasons import Phase
from kuangchao_operator.cli.options import Context, Job, Namespace
from kuangchao_operator.cli.output import Format, Output, emit_json

if TYPE_CHECKING:
    from kuangchao_contracts.api import TrainingJob
    from kuangchao_contracts.api.trainingjob import TrainingJobStatus
    from kuangchao_operator.cli.cluster import Cluster

CONTAINER = "train"
ENDED = (Phase.COMPLETE, Phase.FAILED)
POLL_SECONDS = 1.0


def logs(
    job: Job,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for the pod, then go on until the job ends.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="Pod of this rank.", show_default=False)] = None,
    pod: Annotated[int | None, typer.Option(help="Index of the pod; default 0.", show_default=False)] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the newest lines.", show_default=False)] = None,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for output with --follow.")] = 3_600,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the output of a job's pod, with -f across restarts.

    The pod is that of rank 0 unless --rank or --pod says otherwise.

    JSON: {"job", "pod", "incarnation", "attempt", "lines": [...]}; not with --follow
    """
    from kuangchao_operator.cli.cluster import Cluster

    if follow and output is Format.JSON:
        raise InvalidInputError(
            "--output", "json", "a followed log has no end to write as JSON", "text, or no --follow"
        )
    cluster = Cluster(context, namespace)
    found = cluster.job(job)
    index = pod_index(found, rank, pod)
    if follow:
        Follower(cluster, job, index, tail, timeout).run()
        return
    name = pod_name(job, found.metadata.uid, status_of(found).incarnation, index)
    text = _whole(cluster, found, name, tail)
    if output is Format.JSON:
        status = status_of(found)
        emit_json(
            {
                "job": job,
                "pod": name,
                "incarnation": status.incarnation,
                "attempt": status.attempt,
                "lines": text.splitlines(),
            }
        )
    else:
        sys.stdout.write(text)


def status_of(job: TrainingJob) -> TrainingJobStatus:
    """Status of a job that the operator has seen. Raises UnavailableError before that."""
    if job.status is None:
        raise UnavailableError(
            f"job {job.metadata.name} has no status yet: is the operator running? (kuangchao doctor)"
        )
    return job.status


def pod_index(job: TrainingJob, rank: int | None, pod: int | None) -> int:
    """The pod that is meant. Raises InvalidInputError when the job has no such rank or pod."""
    devices = job.spec.devices
    if rank is not None and pod is not None:
        raise InvalidInputError("--pod", pod, f"cannot stand beside --rank {rank}", "one of both")
    option, value, count = (
        ("--rank", rank, devices.count) if rank is not None else ("--pod", pod or 0, devices.count // devices.per_pod)
    )
    assert value is not None
    if not 0 <= value < count:
        kind = option.removeprefix("--")
        raise InvalidInputError(option, value, f"job has {kind}s 0 to {count - 1}", min(max(value, 0), count - 1))
    return value // devices.per_pod if rank is not None else value


def _whole(cluster: Cluster, job: TrainingJob, name: str, tail: int | None) -> str:
    # the API server answers with nothing for a pod that is not bound yet: that must not pass for an empty log
    if not started(cluster, name):
        raise UnavailableError(no_output(job, name))
    query = {"container": CONTAINER} | ({"tailLines": str(tail)} if tail is not None else {})
    with cluster.stream(_path(cluster, name) + "/log", query, 20) as chunks:
        return b"".join(chunks).decode("utf-8", "replace")


def no_output(job: TrainingJob, pod: str) -> str:
    """Why a pod has none: it is gone, with its output, or it is still to come."""
    status, name = status_of(job), job.metadata.name
    if status.phase in ENDED or (status.phase is Phase.SUSPENDED and status.attempt > 0):
        return (
            f"no output: pod {pod} was deleted when the job became {status.phase}, and its output with it;"
            f" `kuangchao describe {name}` has the last lines of a failure, `kuangchao audit job` the operation log"
        )
    return f"no output: pod {pod} has not started; `logs -f` waits for it, `why` explains"


def started(cluster: Cluster, name: str) -> bool:
    """Whether the training container of a pod runs or has run."""
    from kuangchao_operator.cli.cluster import NotFoundError

    try:
        pod = cluster.request("GET", _path(cluster, name))
    except NotFoundError:
        return False
    states = {c["name"]: c["state"] for c in pod["status"].get("containerStatuses", ())}
    return any(state in states.get(CONTAINER, {}) for state in ("running", "terminated"))


def _path(cluster: Cluster, name: str) -> str:
    return f"/api/v1/namespaces/{cluster.namespace}/pods/{name}"


@dataclass
class Follower:
    """Streams a pod's log, and the log of its successors, until the job has ended."""

    cluster: Cluster
    job: str
    index: int
    tail: int | None
    timeout: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def run(self) -> None:
        """Follow to the end. Raises UnavailableError when no output came for the whole timeout."""
        seen: str | None = None
        deadline = self.clock() + self.timeout
        while True:
            job = self.cluster.job(self.job)
            name = pod_name(self.job, job.metadata.uid, job.status.incarnation if job.status else 0, self.index)
            if name != seen and started(self.cluster, name):
                if seen is not None:
                    print(f"--- {name}: attempt {status_of(job).attempt} ---", file=sys.stderr)
                self._stream(name)
                seen, deadline = name, self.clock() + self.timeout
                continue
            if job.status is not None and job.status.phase in ENDED:
                self._finish(job, seen)
                return
            if self.clock() > deadline:
                phase = job.status.phase if job.status else Phase.PENDING
                raise UnavailableError(
                    f"no output of {name} in {self.timeout} s; job is {phase} (kuangchao why {self.job})"
                )
            self.sleep(POLL_SECONDS)

    def _finish(self, job: TrainingJob, seen: str | None) -> None:
        if seen is None:
            raise UnavailableError(no_output(job, f"{self.index} of job {self.job}"))

    def _stream(self, name: str) -> None:
        """Copy a log to its end; a broken connection goes on where it stopped, repeating at most one second."""
        from kuangchao_operator.cli.cluster import NotFoundError

        query = {"container": CONTAINER, "follow": "true"}
        if self.tail is not None:
            query["tailLines"] = str(self.tail)
        while True:
            try:
                with self.cluster.stream(_path(self.cluster, name) + "/log", query, None) as chunks:
                    for chunk in chunks:
                        sys.stdout.write(chunk.decode("utf-8", "replace"))
                        sys.stdout.flush()
                        query["sinceTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                return
            except NotFoundError:
                return
            except UnavailableError as error:
                query.pop("tailLines", None)
                print(f"--- log stream broke, going on: {error} ---", file=sys.stderr)
                self.sleep(POLL_SECONDS)
