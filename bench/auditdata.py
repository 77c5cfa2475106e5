"""Ninety cold days of audit records, made by DuckDB itself: sizes and columns are real, hashes are not.

A job lives for some 50,000 records, a thousand new ones a million; so an agent's records lie in a few neighbouring row
groups of one or two days, as they do in a cluster.
"""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb

from kuangchao_contracts.audit import AuditRecord, Decision, Stage, StoredRecord
from kuangchao_operator.audit import cold
from kuangchao_operator.audit.cold import ShardSummary

FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)
DAYS: Final = 90
DAY_MICROS: Final = 86_400_000_000
NUMBER: Final = 7_777_777
"""Stands in the template for the sequence number."""
MARKS: Final = {"@job@": "job", "@op@": "op", "@opid@": "opid", "@resource@": "resource", "@subject@": "subject"}
COLUMNS: Final = """
    SELECT seq, lpad(hex(hash(seq)), 16, '0') AS opid, {start} + (seq - {first}) * {step} AS ts, 'read' AS stage,
        'execution.op' || (hash(seq) % 8) AS op, 'team-' || (number % 20) || '/jobs/job-' || number AS resource,
        'agent:team-' || (number % 20) || '/job-' || number || '/w-0' AS subject, 'job-' || number AS job,
        'allow' AS decision
    FROM (
        SELECT range AS seq, (range // 1000 + hash(range) % 50)::BIGINT AS number
        FROM range({first}, {first} + {count}))
"""


def make(directory: Path, records: int) -> None:
    """Fill a store with so many records over ninety days."""
    connection = duckdb.connect()
    per_day = records // DAYS
    try:
        for number in range(DAYS):
            _make_day(connection, directory, (FIRST + timedelta(days=number)).date(), number, per_day)
    finally:
        connection.close()


def subject(records: int) -> str:
    """An agent in the middle of it, with about a thousand records."""
    number = records // 2 // 1_000
    return f"agent:team-{number % 20}/job-{number}/w-0"


def _make_day(connection: duckdb.DuckDBPyConnection, directory: Path, day: date, number: int, count: int) -> None:
    shard = cold.shard_of(directory, day)
    shard.mkdir(parents=True)
    first = 1 + number * count
    start = int(FIRST.timestamp() * 1e6) + number * DAY_MICROS
    columns = COLUMNS.format(start=start, first=first, step=DAY_MICROS // count, count=count)
    connection.execute(
        f"COPY (SELECT *, encode({_body()}) AS body FROM ({columns})) TO '{shard}/part-00000.parquet' {cold.FORM}"
    )
    cold.write_summary(shard / cold.SUMMARY, ShardSummary(day=day, size=count, first=first, last=first + count - 1))


def _body() -> str:
    """The record's bytes as an expression over the columns."""
    template = StoredRecord(seq=NUMBER, previous="0" * 48 + "@opid@", record=_record()).canonical().decode()
    text = "'" + template.replace(str(NUMBER), "' || seq || '") + "'"
    for mark, column in MARKS.items():
        text = text.replace(mark, f"' || {column} || '")
    return text


def _record() -> AuditRecord:
    return AuditRecord(
        ts=FIRST,
        opid="@opid@",
        stage=Stage.READ,
        layer="execution",
        op="@op@",
        resource="@resource@",
        subject="@subject@",
        issuer="kuangchao/default",
        jti="0" * 22,
        kid="0" * 43,
        job="@job@",
        job_uid="0" * 36,
        attempt=1,
        policy=1,
        decision=Decision.ALLOW,
        request_sha256="0" * 64,
        duration_us=100,
        process="operator",
    )
