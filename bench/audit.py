"""The audit record: what a durable mutation costs, what a flood does to it, and how long old days take to search."""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb

from bench import auditdata
from bench.figures import Bound, Figure, percentile
from kuangchao_contracts.audit import AuditQuery, AuditRecord, Decision, Stage, StoredRecord, new_opid
from kuangchao_operator.audit import schema
from kuangchao_operator.audit.query import MAX_RANGE, query
from kuangchao_operator.audit.sink import StoreSink

GROUP: Final = "audit"
CALLERS: Final = 64
RATE: Final = 2_000
"""Durable records a second in the run that looks at latency."""
FLOOD: Final = 20_000
"""Reads a second."""
TICK: Final = 0.01


def measure(quick: bool = False) -> list[Figure]:
    """All figures. Everything is on the disk of the folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        figures = throughput(path / "throughput", rounds=2 if quick else 5, count=1_000 if quick else 5_000)
        figures += asyncio.run(latency(path / "latency", seconds=1.0 if quick else 10.0))
        figures += asyncio.run(flood(path / "flood", seconds=1.0 if quick else 10.0))
        figures += asyncio.run(enqueue(path / "enqueue", count=10_000 if quick else 50_000))
        figures += search(path / "search", 1_000_000 if quick else 10_000_000, rounds=3 if quick else 5)
    return figures


def a_record(stage: Stage) -> AuditRecord:
    """A record as a gate makes it."""
    return AuditRecord(
        ts=datetime.now(UTC),
        opid=new_opid(),
        stage=stage,
        layer="state",
        op="state.commit_checkpoint",
        resource="team-a/jobs/digits",
        subject="agent:team-a/digits/w-0",
        issuer="kuangchao/default",
        jti="0" * 22,
        kid="0" * 43,
        job="digits",
        job_uid="0" * 36,
        attempt=1,
        policy=1,
        decision=Decision.ALLOW,
        request_sha256="0" * 64,
        process="operator",
    )


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[StoreSink]:
    """A sink of the operator's kind."""
    sink = StoreSink(directory, time.time)
    await sink.start()
    try:
        yield sink
    finally:
        await sink.close()


def throughput(directory: Path, rounds: int, count: int) -> list[Figure]:
    """Mutations, each an intent and a result that are on disk, by 64 callers; and plain SQLite, one row a commit."""
    ours, theirs, used, commits = [], [], [], []
    for number in range(rounds):
        began = time.process_time()
        ours.append(asyncio.run(_mutations(directory / f"ours-{number}", count)))
        used.append(1e6 * (time.process_time() - began) / count)
        taken = _plain(directory / f"theirs-{number}.sqlite", max(count // 10, 100))
        theirs.append(len(taken) / sum(taken))
        commits += [1_000 * value for value in taken]
    ratio = statistics.median(2 * mine / plain for mine, plain in zip(ours, theirs, strict=True))
    note = f"{CALLERS} callers, {rounds} rounds, {min(ours):.0f} to {max(ours):.0f}"
    alike = "FULL, one row a commit, same table and disk"
    return [
        Figure(GROUP, "audited mutations", round(statistics.median(ours)), "/s", Bound.AT_LEAST, 2_000, note),
        Figure(
            GROUP, "CPU of an audited mutation", round(statistics.median(used)), "us", note="caller, sink and store"
        ),
        Figure(GROUP, "records / rows of plain SQLite", round(ratio, 2), note=alike),
        Figure(GROUP, "plain SQLite", round(statistics.median(theirs)), "rows/s"),
        Figure(GROUP, "plain SQLite, one commit, p99", round(percentile(commits, 99), 2), "ms", note="the disk itself"),
    ]


async def _mutations(directory: Path, count: int) -> float:
    async with running(directory) as sink:
        left = iter(range(count))

        async def caller() -> None:
            for _ in left:
                intent = a_record(Stage.INTENT)
                await sink.durable(intent)
                await sink.durable(intent.replace(stage=Stage.RESULT))

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return count / (time.perf_counter() - began)


def _plain(path: Path, count: int) -> list[float]:
    """Seconds of each commit: the store's own table and settings, without batches, chain and tree."""
    rows = [schema.row(n + 1, made, made.canonical()) for n in range(count) for made in (a_record(Stage.INTENT),)]
    taken = []
    with closing(schema.open_writer(path)) as connection:
        for row in rows:
            began = time.perf_counter()
            connection.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            taken.append(time.perf_counter() - began)
    return taken


async def latency(directory: Path, seconds: float) -> list[Figure]:
    """How long a durable record takes while 2,000 a second are asked for, whatever comes of the ones before."""
    taken: list[float] = []
    async with running(directory) as sink:

        async def one() -> None:
            began = time.perf_counter()
            await sink.durable(a_record(Stage.INTENT))
            taken.append(time.perf_counter() - began)

        await _paced(seconds, RATE, one)
    note = f"{len(taken)} records at {RATE}/s"
    milliseconds = [1_000 * value for value in taken]
    return [
        Figure(GROUP, "durable record, p50", round(percentile(milliseconds, 50), 2), "ms", note=note),
        Figure(GROUP, "durable record, p99", round(percentile(milliseconds, 99), 2), "ms", target=20.0, note=note),
    ]


async def _paced(seconds: float, rate: int, act: Callable[[], Awaitable[None]]) -> None:
    """Begin so many a second, evenly in ticks; ends when all have ended."""
    began, sent = time.perf_counter(), 0
    async with asyncio.TaskGroup() as group:
        while sent < seconds * rate:
            due = min(int((time.perf_counter() - began) * rate) + 1, int(seconds * rate))
            for _ in range(due - sent):
                group.create_task(act())
            sent = due
            await asyncio.sleep(TICK)


async def flood(directory: Path, seconds: float) -> list[Figure]:
    """Reads at 20,000 a second and among them one denial and twenty mutations a second."""
    taken: list[float] = []
    sent = 0
    async with running(directory) as sink:

        async def control() -> None:
            began = time.perf_counter()
            await sink.durable(a_record(Stage.INTENT))
            taken.append(time.perf_counter() - began)

        async def reads() -> None:
            nonlocal sent
            sent += FLOOD // 100
            for _ in range(FLOOD // 100):
                sink.best_effort(read)

        read = a_record(Stage.READ)
        async with asyncio.TaskGroup() as group:
            group.create_task(_paced(seconds, 100, reads))
            group.create_task(_paced(seconds, 20, control))
            group.create_task(sink.durable(a_record(Stage.DENY).replace(decision=Decision.DENY)))
        dropped = sink.dropped
    stages = _stages(directory)
    unaccounted = sent - stages.get("read", 0) - stages.get("dropped", 0)
    note = f"{sent} reads in {seconds:.0f} s, {100 * dropped / sent:.0f} % dropped and counted"
    return [
        Figure(GROUP, "flood: reads neither stored nor counted", abs(unaccounted), target=0, note=note),
        Figure(GROUP, "flood: denials lost", 1 - stages.get("deny", 0), target=0),
        Figure(GROUP, "flood: durable record, p99", round(1_000 * percentile(taken, 99), 2), "ms"),
    ]


def _stages(directory: Path) -> dict[str, int]:
    """Stored records by stage; `dropped` is the sum of what was told to be so."""
    found: dict[str, int] = {}
    for path in schema.files(directory):
        with closing(schema.open_reader(path)) as reader:
            for stage, count in reader.execute("SELECT stage, count(*) FROM records GROUP BY stage"):
                found[stage] = found.get(stage, 0) + count
            for (body,) in reader.execute("SELECT body FROM records WHERE op = 'audit.dropped'"):
                told = StoredRecord.model_validate_json(body).record.count
                found["dropped"] = found.get("dropped", 0) + told
    return found


async def enqueue(directory: Path, count: int) -> list[Figure]:
    """What a read costs its caller."""
    async with running(directory) as sink:
        records = [a_record(Stage.READ) for _ in range(count)]
        began = time.perf_counter()
        for record in records:
            sink.best_effort(record)
        each = 1e6 * (time.perf_counter() - began) / count
    return [Figure(GROUP, "enqueue a read", round(each, 2), "us", target=20.0, note=f"{count} in a row")]


def search(directory: Path, records: int, rounds: int) -> list[Figure]:
    """All records of one agent out of ninety cold days, by the store's query and by one statement of DuckDB."""
    began = time.perf_counter()
    auditdata.make(directory, records)
    made, subject = time.perf_counter() - began, auditdata.subject(records)
    ours, theirs, found = [], [], 0
    for _ in range(rounds):
        seconds, found = _timed(lambda: _ours(directory, subject))
        ours.append(seconds)
        seconds, same = _timed(lambda: _theirs(directory, subject))
        theirs.append(seconds)
        if found != same:
            raise RuntimeError(f"the store finds {found} records, DuckDB {same}")
    note = f"{found} of {records} records in 3 queries; made in {made:.0f} s"
    ratio = statistics.median(mine / plain for mine, plain in zip(ours, theirs, strict=True))
    return [
        Figure(GROUP, "90 days by subject", round(statistics.median(ours), 3), "s", target=2.0, note=note),
        Figure(GROUP, "90 days by subject / DuckDB", round(ratio, 2), note="one thread, bodies only, not parsed"),
    ]


def _timed(act: Callable[[], int]) -> tuple[float, int]:
    began = time.perf_counter()
    found = act()
    return time.perf_counter() - began, found


def _ours(directory: Path, subject: str) -> int:
    """As the command line asks: in pieces, page by page."""
    found, since, end = 0, auditdata.FIRST, auditdata.FIRST + timedelta(days=auditdata.DAYS)
    while since < end:
        until, after = min(since + MAX_RANGE, end), 0
        while True:
            page = query(directory, AuditQuery(since=since, until=until, subject=subject, after=after))
            found += len(page.records)
            if page.next_after is None:
                break
            after = page.next_after
        since = until
    return found


def _theirs(directory: Path, subject: str) -> int:
    files = sorted(map(str, directory.glob("cold/*/*.parquet")))
    with closing(duckdb.connect(config={"threads": 1})) as connection:
        statement = "SELECT body FROM read_parquet(?, hive_partitioning = false) WHERE subject = ? ORDER BY seq"
        return len(connection.execute(statement, [files, subject]).fetchall())
