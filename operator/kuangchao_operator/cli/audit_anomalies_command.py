"""`kuangchao audit anomalies`: unusual use of rights in the trail, judged by governance's rules. Reads only."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_operator.cli.audit_source import asking, existing, records
from kuangchao_operator.cli.options import RELEASE_NAMESPACE, Context, ReleaseNamespace, point_in_time
from kuangchao_operator.cli.output import Format, Output, emit_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kuangchao_contracts.audit import AuditRecord
    from kuangchao_operator.layers.governance.anomalies import Finding

COLUMNS = ("window", "severity", "rule", "subject", "count", "usual", "detail")


def anomalies(
    since: Annotated[
        str, typer.Option(help="Not before: 1h, 7d or RFC 3339; norms come from the same stretch.")
    ] = "6h",
    directory: Annotated[
        Path | None, typer.Option(help="Read an audit directory of this machine instead of the cluster's.")
    ] = None,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Unusual use of rights: writes by who only reads, calls far above the norm, tokens used twice or too late.

    JSON: {"since", "records": N, "findings": [{rule, severity, subject, start, end, count, norm, opids, detail,
    advice}]}
    """
    from kuangchao_contracts.audit import AuditQuery
    from kuangchao_operator.layers.governance.follower import find

    start = point_in_time("--since", since, datetime.now(UTC))
    counted = _Counted()
    with asking(existing(directory), context, release_namespace) as ask:
        found = find(counted.through(item.record for item in records(ask, AuditQuery(since=start))))
    if output is Format.JSON:
        emit_json({"since": start, "records": counted.number, "findings": [finding.record() for finding in found]})
        return
    print(report(found, counted.number))


class _Counted:
    """How many records went through."""

    def __init__(self) -> None:
        self.number = 0

    def through(self, records: Iterator[AuditRecord]) -> Iterator[AuditRecord]:
        for record in records:
            self.number += 1
            yield record


def report(found: list[Finding], number: int) -> str:
    """Findings as a table, each rule's advice once, below it."""
    if not found:
        return f"nothing unusual in {number} records"
    rows = [
        (
            finding.start.strftime("%Y-%m-%dT%H:%MZ"),
            finding.severity,
            finding.rule.value,
            finding.subject,
            str(finding.count),
            "none" if finding.norm is None else f"{finding.norm:g}",
            f"{finding.detail or '-'} [{' '.join(finding.opids)}]",
        )
        for finding in found
    ]
    advice = [f"{rule}: {text}" for rule, text in dict.fromkeys((f.rule.value, f.advice) for f in found)]
    return "\n".join([table(COLUMNS, rows), "", *advice])
