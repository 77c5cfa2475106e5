"""Two runs that train by turns, a block of steps each, so that both meet the same machine.

Whole runs one after another differ by more than the few per cent in question. Here every rank stops after its block and
asks for the next one over a socket; while one side has its turn, all processes of the other are stopped by a signal, so
that neither pays for the other's background work.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.figures import Pair, Side

WARM_UP: Final = 10
"""Steps that are not timed: allocation, lazy imports, first collectives."""
ANSWER_SECONDS: Final = 120.0
GO, FREE = b"g", b"f"


class Turn:
    """In a rank: call `tick` once in each step, always at the same point."""

    def __init__(self, path: str, side: str, block: int, cpu: Callable[[], float] = time.process_time) -> None:
        self._cpu, self._side, self._block = cpu, side, block
        self._ticks = -WARM_UP
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def tick(self) -> None:
        """Wait at the end of each block until the next may begin; after the last there is no waiting any more."""
        if self._socket is not None and self._ticks >= 0 and self._ticks % self._block == 0:
            self._socket.sendall(json.dumps({"side": self._side, "cpu": self._cpu()}).encode() + b"\n")
            if self._socket.recv(1) != GO:
                self.close()
        self._ticks += 1

    def close(self) -> None:
        """Take no more turns."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass
class Team:
    """The ranks of one side: their connections, and the processes to stop while the other side has its turn."""

    ranks: int
    process: psutil.Process
    connections: list[socket.socket] = field(default_factory=list)
    cpu: float = 0.0

    def gather(self) -> float:
        """Wait until every rank is at the end of its block; CPU seconds of all ranks since the last time."""
        total = sum(float(json.loads(_line(connection))["cpu"]) for connection in self.connections)
        used, self.cpu = total - self.cpu, total
        return used

    def answer(self, what: bytes) -> None:
        """Let every rank go on."""
        for connection in self.connections:
            connection.sendall(what)

    def signal(self, act: Callable[[psutil.Process], None]) -> None:
        """Stop or continue the whole tree."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self.process, *self.process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    act(process)


class Referee:
    """Gives turns to two teams and keeps the time."""

    def __init__(self, path: Path, block: int) -> None:
        self._block = block
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._listener.settimeout(ANSWER_SECONDS)

    def pairs(self, ours: Team, theirs: Team, count: int) -> list[Pair]:
        """So many pairs of blocks; who goes first alternates. Raises TimeoutError when a rank is not heard of."""
        self._assemble({"ours": ours, "theirs": theirs})
        for team in (ours, theirs):
            team.gather()
            team.signal(psutil.Process.suspend)
        found = []
        for number in range(count):
            order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
            sides = {id(team): self._turn(team) for team in order}
            found.append(Pair(sides[id(ours)], sides[id(theirs)]))
        for team in (ours, theirs):
            team.signal(psutil.Process.resume)
            team.answer(FREE)
        return found

    def _turn(self, team: Team) -> Side:
        team.signal(psutil.Process.resume)
        began = time.perf_counter()
        team.answer(GO)
        cpu = team.gather()
        seconds = time.perf_counter() - began
        team.signal(psutil.Process.suspend)
        return Side(self._block / seconds, cpu / team.ranks / self._block)

    def _assemble(self, teams: Mapping[str, Team]) -> None:
        for _ in range(sum(team.ranks for team in teams.values())):
            connection, _address = self._listener.accept()
            self._connections.append(connection)
            connection.settimeout(ANSWER_SECONDS)
            side = json.loads(_line(connection, socket.MSG_PEEK))["side"]
            teams[side].connections.append(connection)

    def close(self) -> None:
        """Stop listening and hang up; a rank that still waits goes on freely."""
        for connection in (self._listener, *self._connections):
            connection.close()


def _line(connection: socket.socket, flags: int = 0) -> bytes:
    """What a rank said; a line this short arrives whole. MSG_PEEK leaves it for the next reader."""
    raw = connection.recv(4096, flags)
    if not raw:
        raise RuntimeError("a rank ended before its last block")
    return raw


@contextlib.contextmanager
def referee(path: Path, block: int) -> Iterator[Referee]:
    """A referee that listens at a path."""
    judge = Referee(path, block)
    try:
        yield judge
    finally:
        judge.close()
