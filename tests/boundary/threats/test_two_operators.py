"""T24: two operators at once. One holds the record; the other can record nothing, so it can do nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports.execution import ExecutionControl, LaunchRequest
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.verify import verify
from tests.boundary.authority.recorders import Reached, recorder
from tests.unit.authority.kit import NOW, RESOURCE, Clock, FixedFence, Signer

FIRST = """
import asyncio, sys
from pathlib import Path
from kuangchao_operator.audit.sink import StoreSink
from tests.unit.authority.kit import Clock
from tests.unit.authority.records import record

async def main():
    sink = StoreSink(Path(sys.argv[1]), Clock())
    await sink.start()
    print("leads", flush=True)
    for number, _ in enumerate(sys.stdin, start=1):
        await sink.durable(record(number))
        print("wrote", flush=True)

asyncio.run(main())
"""
LAUNCH = LaunchRequest(attempt=3, incarnation=0, plan_hash="0" * 64)
Leader = subprocess.Popen[str]


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    """An operator's sink in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FIRST, str(tmp_path)]
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert line(child) == "leads"
        yield child
        child.kill()


def line(child: Leader) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def write(child: Leader) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


async def test_the_second_can_do_nothing_while_the_first_lives_even_paused(tmp_path: Path, leader: Leader) -> None:
    leader.send_signal(signal.SIGSTOP)
    second = StoreSink(tmp_path, Clock(NOW + 100))
    with pytest.raises(e.AuditUnavailableError, match="another process"):
        await second.start()
    signer, done = Signer(Clock()), list[str]()
    gate = Gate("operator", signer.verifier(), FixedFence(), second, signer.clock.moment)
    gate.register(recorder(ExecutionControl, done))
    token = signer.one_shot("execution.launch", sub="layer:execution", pod=..., ranks=...)
    with pytest.raises(e.AuditUnavailableError):
        await gate.call(token, "execution.launch", RESOURCE, LAUNCH)
    assert done == [], "no record, no action"
    leader.send_signal(signal.SIGCONT)
    write(leader)
    assert line(leader) == "wrote", "the first goes on where it was"
    assert len(query(tmp_path, AuditQuery(operation="execution.launch")).records) == 1


async def test_the_second_takes_over_when_the_first_is_dead_and_the_chain_goes_on(
    tmp_path: Path, leader: Leader
) -> None:
    write(leader)
    assert line(leader) == "wrote"
    leader.kill()
    leader.wait(20)
    clock = Clock(NOW + 100)
    second = StoreSink(tmp_path, clock)
    await second.start()
    signer, done = Signer(clock), list[str]()
    gate = Gate("operator", signer.verifier(), FixedFence(), second, clock.moment)
    gate.register(recorder(ExecutionControl, done))
    token = signer.one_shot("execution.launch", sub="layer:execution", pod=..., ranks=...)
    with pytest.raises(Reached):
        await gate.call(token, "execution.launch", RESOURCE, LAUNCH)
    await second.close()
    assert done == ["execution.launch"]
    assert verify(tmp_path).ok
    assert [item.seq for item in query(tmp_path, AuditQuery()).records] == [1, 2, 3]
