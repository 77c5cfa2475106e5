"""`kuangchao audit`: asks governance on its pod's loopback port, through the API server's port-forward. Reads only."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import InvalidInputError, PermissionDeniedError
from kuangchao_operator.cli.options import RELEASE_NAMESPACE, Context, ReleaseNamespace, point_in_time
from kuangchao_operator.cli.output import Format, Output, emit_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kuangchao_contracts.audit import AuditPage, AuditQuery, StoredRecord
    from kuangchao_operator.cli.cluster import Cluster
    from kuangchao_operator.cli.portforward import PodPort


class Result(StrEnum):
    """How a call ended; the words of the audit record."""

    ALLOW = "allow"
    DENY = "deny"
    ERROR = "error"


PODS = {"app.kubernetes.io/name": "kuangchao", "app.kubernetes.io/component": "governance"}
PORT = 8080
PATH = "/v1/audit"
ROLE = "kuangchao-auditor"
COLUMNS = ("time", "subject", "operation", "resource", "attempt", "result", "detail")


def query(
    since: Annotated[str | None, typer.Option(help="Not before: 1h, 7d or RFC 3339.")] = None,
    until: Annotated[str | None, typer.Option(help="Before: 1h, 7d or RFC 3339.")] = None,
    subject: Annotated[str | None, typer.Option(help="layer:execution, agent:..., rank:...")] = None,
    operation: Annotated[str | None, typer.Option(help="execution.launch, state.commit_checkpoint, ...")] = None,
    resource: Annotated[str | None, typer.Option(help="<namespace>/<kind>/<name>, or its first segments.")] = None,
    result: Annotated[Result | None, typer.Option(help="How it ended.")] = None,
    job: Annotated[str | None, typer.Option(help="Name of a TrainingJob.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only resources of this namespace.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Records at most.")] = 1_000,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Records of the audit store that match every filter, oldest first.

    JSON: {"records": [{seq, previous, record: {ts, opid, stage, layer, op, resource, subject, job, attempt, decision,
    reason, ...}}], "droppedReads": N, "truncated": bool}
    """
    from kuangchao_contracts.audit import AuditQuery, Decision
    from kuangchao_operator.cli.cluster import Cluster

    now = datetime.now(UTC)
    wanted = AuditQuery(
        since=point_in_time("--since", since, now),
        until=point_in_time("--until", until, now),
        subject=subject,
        operation=operation,
        resource=within(namespace, resource),
        result=Decision(result) if result else None,
        job=job,
    )
    if wanted.since and wanted.until and wanted.since >= wanted.until:
        raise InvalidInputError("--since", since, f"is not before --until {until}")
    with governance(Cluster(context), release_namespace) as port:
        reader = _Reader(port, pieces(wanted, now), limit)
        records = list(reader.records())
    if output is Format.JSON:
        emit_json(
            {
                "records": [item.wire() for item in records],
                "droppedReads": reader.dropped,
                "truncated": reader.truncated,
            }
        )
        return
    print(table(COLUMNS, lines(records)))
    if reader.dropped:
        typer.echo(f"{reader.dropped} successful reads were dropped under load", err=True)
    if reader.truncated:
        typer.echo(f"more records match; raise --limit {limit} or narrow the filters", err=True)


def within(namespace: str | None, resource: str | None) -> str | None:
    """The resource filter of a namespace and a resource. Raises InvalidInputError when they contradict each other."""
    if namespace is not None and resource is not None and resource.split("/")[0] != namespace:
        raise InvalidInputError("--resource", resource, f"is not in --namespace {namespace}", namespace)
    return resource or namespace


def lines(records: list[StoredRecord]) -> list[tuple[str, ...]]:
    """Records as lines of the table: an operation is one line, that of its result once there is one."""
    from kuangchao_contracts.audit import Stage

    over = {item.record.opid for item in records if item.record.stage is not Stage.INTENT}
    return [row(item) for item in records if item.record.stage is not Stage.INTENT or item.record.opid not in over]


def row(item: StoredRecord) -> tuple[str, ...]:
    """A record as a line of the table. An intent without a result has no outcome yet."""
    from kuangchao_contracts.audit import Stage

    record = item.record
    unfinished = record.stage is Stage.INTENT
    counted = f"{record.count} calls" if record.count > 1 else ""
    return (
        record.ts.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        record.subject,
        record.op,
        record.resource,
        str(record.attempt),
        "unfinished" if unfinished else record.decision,
        " ".join(filter(None, ("" if unfinished else record.reason, record.detail, counted))) or "-",
    )


@contextmanager
def governance(cluster: Cluster, namespace: str) -> Iterator[PodPort]:
    """The port for queries of a release. Raises PermissionDeniedError with the Role that lacks, UnavailableError."""
    from kuangchao_operator.cli.portforward import pod_port, ready_pod

    with ExitStack() as held:
        try:
            pod = ready_pod(cluster, namespace, PODS)
            port = held.enter_context(pod_port(cluster, namespace, pod, PORT))
        except PermissionDeniedError as error:
            raise PermissionDeniedError(f"{error}; bind the Role {ROLE} in namespace {namespace}") from None
        yield port


class _Reader:
    """Follows the pages of an answer up to a limit."""

    def __init__(self, port: PodPort, queries: list[AuditQuery], limit: int) -> None:
        self._port, self._queries, self._left = port, queries, limit
        self.dropped, self.truncated = 0, False

    def records(self) -> Iterator[StoredRecord]:
        """Records in order of their sequence numbers; from one piece of time to the next in order of time."""
        for query in self._queries:
            after: int | None = 0
            while after is not None:
                if self._left <= 0:
                    self.truncated = True
                    return
                page = page_of(self._port, query.replace(after=after, limit=min(self._left, 1_000)))
                yield from page.records
                self._left -= len(page.records)
                self.dropped, after = page.dropped_reads, page.next_after


def pieces(wanted: AuditQuery, now: datetime) -> list[AuditQuery]:
    """The same question in as many queries as it takes, since one may span 31 days only. Together they miss nothing."""
    from kuangchao_operator.audit.query import MAX_RANGE

    start, end, found = wanted.since, wanted.until or now, []
    while start is not None and end - start > MAX_RANGE:
        found.append(wanted.replace(since=start, until=start + MAX_RANGE))
        start += MAX_RANGE
    return [*found, wanted.replace(since=start)]


def page_of(port: PodPort, query: AuditQuery) -> AuditPage:
    """One page of records."""
    from kuangchao_contracts.audit import AuditPage

    texts = {name: str(value) for name, value in query.wire().items()}
    return AuditPage.from_reply(port.get(PATH, texts))
