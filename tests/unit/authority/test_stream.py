"""The copy of the record for log collectors: every line, or a count of those that are missing; never a wait."""

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kuangchao_contracts.audit import AuditQuery, StoredRecord
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.stream import RecordStream
from tests.unit.authority.kit import NOW, Clock
from tests.unit.authority.records import record

PIPE_BYTES = 65_536


class Pipe:
    """A pipe whose other end reads when told to."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.read = b""

    def drain(self, until: Callable[[], bool]) -> None:
        while not until():
            self.read += os.read(self.out, PIPE_BYTES)

    def lines(self) -> list[bytes]:
        return self.read.splitlines()

    def close(self) -> None:
        os.close(self.into)
        os.close(self.out)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def stream(pipe: Pipe, tmp_path: Path) -> RecordStream:
    return RecordStream(tmp_path, pipe.into, deadline=0.05)


@pytest.fixture
async def sink(tmp_path: Path, stream: RecordStream) -> AsyncIterator[StoreSink]:
    clock = Clock(NOW + 0.99)
    sink = StoreSink(tmp_path, clock, stream=stream)
    await sink.start()
    yield sink
    await sink.close()


def stored(directory: Path) -> list[StoredRecord]:
    return list(query(directory, AuditQuery(limit=10_000)).records)


async def test_every_stored_record_is_a_line_of_the_same_bytes(sink: StoreSink, pipe: Pipe, tmp_path: Path) -> None:
    for number in range(20):
        await sink.durable(record(number))
    await sink.close()
    pipe.drain(lambda: pipe.read.count(b"\n") == 20)
    assert pipe.lines() == [item.canonical() for item in stored(tmp_path)]


async def test_a_reader_that_hangs_costs_lines_and_no_time(
    sink: StoreSink, stream: RecordStream, pipe: Pipe, tmp_path: Path
) -> None:
    given_up = threading.Event()
    original = stream._skip

    def skip(seq: int) -> None:
        original(seq)
        given_up.set()

    stream._skip = skip  # type: ignore[method-assign]
    number = 0
    while not given_up.is_set():
        await sink.durable(record(number, detail="x" * 1_000))
        number += 1
    await sink.durable(record(number))
    count = len(stored(tmp_path))
    assert count == number + 1
    pipe.drain(lambda: _whole(pipe) + stream.dropped >= count)
    assert stream.dropped > 0
    assert _whole(pipe) + stream.dropped == count


def _whole(pipe: Pipe) -> int:
    """Lines that are whole records; one may have been torn by the deadline."""
    ends = pipe.read.rpartition(b"\n")[0]
    return sum(line.startswith(b"{") and line.endswith(b"}") for line in ends.split(b"\n"))


async def test_nobody_reads_any_more(sink: StoreSink, stream: RecordStream, pipe: Pipe, tmp_path: Path) -> None:
    os.close(pipe.out)
    pipe.out = os.open(os.devnull, os.O_RDONLY)
    await sink.durable(record(1))
    await sink.close()
    assert (len(stored(tmp_path)), stream.dropped) == (1, 1)


async def test_only_what_is_new_is_copied(tmp_path: Path, pipe: Pipe) -> None:
    for opid in (1, 2):
        sink = StoreSink(tmp_path, Clock(NOW + 0.99), stream=RecordStream(tmp_path, pipe.into))
        await sink.start()
        await sink.durable(record(opid))
        await sink.close()
    pipe.drain(lambda: pipe.read.count(b"\n") == 2)
    assert [StoredRecord.model_validate_json(line).record.opid for line in pipe.lines()] == ["op-1", "op-2"]


async def test_days_follow_one_another(tmp_path: Path, pipe: Pipe) -> None:
    clock = Clock(NOW + 0.99)
    sink = StoreSink(tmp_path, clock, stream=RecordStream(tmp_path, pipe.into))
    await sink.start()
    for number in range(3):
        await sink.durable(record(number))
        clock.now += 86_400
    await sink.close()
    pipe.drain(lambda: pipe.read.count(b"\n") == 5)
    assert [StoredRecord.model_validate_json(line).seq for line in pipe.lines()] == [1, 2, 3, 4, 5]
