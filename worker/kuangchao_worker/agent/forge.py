"""The agent's end of the forge: asks for ranks and stores, and hears how they ended.

A forge that fails is not a fault of the job: ranks are then started cold.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kuangchao_contracts.errors import UnavailableError
from kuangchao_worker.agent.launcher import launched
from kuangchao_worker.pod.outputs import OUTPUTS

READY_SECONDS: Final = 300.0
ANSWER_SECONDS: Final = 120.0
CONNECT_SECONDS: Final = 10.0
MAX_MESSAGE: Final = 4_096
PADDING: Final = "." * 64
"""Room in the command line for the titles of forked ranks."""
log = logging.getLogger("kuangchao.forge")


@dataclass(frozen=True, slots=True)
class ForgedStore:
    """The store of an attempt."""

    pid: int
    port: int
    prefix: str
    ended: Mapping[int, int]

    def close(self) -> None:
        """End it."""
        if self.pid not in self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Forge:
    """One forge process, from the one that agents of a machine share or of our own.

    `on_end` is told (pid, exit code) of everything it forked.
    """

    def __init__(self, environment: Mapping[str, str], shared: Path | None = None) -> None:
        self.on_end: Callable[[int, int], None] = lambda _pid, _code: None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._running: set[int] = set()
        self.ended: dict[int, int] = {}
        """Exit code by pid: a child may end before whoever asked for it has heard its pid."""
        self.alive = True
        self._ticket = 0
        self._popen: subprocess.Popen[bytes] | None = None
        connection = _connect(shared) if shared is not None else None
        if connection is None:
            connection, self._popen = _start(environment)
        self._socket = connection
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._hear)

    async def ready(self) -> None:
        """Wait until torch is imported. Raises UnavailableError when the forge cannot fork."""
        try:
            can = await asyncio.wait_for(asyncio.shield(self._ready), READY_SECONDS)
        except TimeoutError:
            raise UnavailableError(f"the forge was not ready within {READY_SECONDS:.0f} s") from None
        if not can:
            raise UnavailableError("the forge cannot fork")

    async def store(self, attempt: int, environment: Mapping[str, str]) -> ForgedStore:
        """A store for an attempt, in a process of its own."""
        read, write = os.pipe2(os.O_CLOEXEC)
        title = f"kuangchao_worker.store attempt={attempt}"
        with open(read, "rb", closefd=True) as answer:  # noqa: PTH123, ASYNC230 - a pipe, read in a thread
            pid = await self._fork({"attempt": attempt, "title": title, "environment": dict(environment)}, write)
            try:
                raw = await asyncio.wait_for(asyncio.to_thread(answer.read), ANSWER_SECONDS)
                found = json.loads(raw)
            except (TimeoutError, ValueError):
                raise UnavailableError("the store did not start") from None
        return ForgedStore(pid, int(found["port"]), str(found["prefix"]), self.ended)

    async def rank(self, path: Path, rank: int, environment: Mapping[str, str]) -> tuple[int, int]:
        """A rank of ours: (pid, descriptor of its standard error)."""
        read, write = os.pipe2(os.O_CLOEXEC)
        title = f"kuangchao_worker.rank rank={rank}"
        try:
            pid = await self._fork({"path": str(path), "title": title, "environment": dict(environment)}, write)
        except UnavailableError:
            os.close(read)
            raise
        return pid, read

    async def _fork(self, request: dict[str, Any], descriptor: int) -> int:
        try:
            await self.ready()
            self._ticket += 1
            answer = self._answers[self._ticket] = self._loop.create_future()
            raw = json.dumps({**request, "ticket": self._ticket}).encode()
            socket.send_fds(self._socket, [raw], [descriptor])
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except (OSError, TimeoutError) as error:
            raise UnavailableError(f"the forge does not answer: {type(error).__name__}") from None
        finally:
            os.close(descriptor)

    def _hear(self) -> None:
        try:
            raw = self._socket.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:
            self._lost()
            return
        message = json.loads(raw)
        if "ready" in message:
            self._ready.set_result(message["ready"])
        elif "ended" in message:
            for pid, code in message["ended"]:
                self._end(pid, code)
        else:
            self.ended.pop(message["pid"], None)
            self._running.add(message["pid"])
            answer = self._answers.pop(message["ticket"], None)
            if answer is not None and not answer.done():
                answer.set_result(message["pid"])

    def _end(self, pid: int, code: int) -> None:
        self._running.discard(pid)
        self.ended[pid] = code
        self.on_end(pid, code)

    def _lost(self) -> None:
        """The forge is gone, and with it everything it forked; what our own forge had comes to us as orphans."""
        self._loop.remove_reader(self._socket)
        if not self._ready.done():
            self._ready.set_result(False)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnavailableError("the forge is gone"))
        self.alive = False
        if self._popen is None:
            for pid in tuple(self._running):
                self._await_end(pid)

    def _await_end(self, pid: int) -> None:
        """Somebody else's child, which the kernel kills: told as ended when it has."""
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end(pid, -signal.SIGKILL)
            return

        def over() -> None:
            self._loop.remove_reader(watched)
            os.close(watched)
            self._end(pid, -signal.SIGKILL)

        self._loop.add_reader(watched, over)

    def close(self) -> None:
        """End the forge; its children die with it."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(signal.SIGKILL)
            self._popen.wait(timeout=10)


def _connect(shared: Path) -> socket.socket | None:
    """A forge from the process that agents of this machine share; None where that is gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CONNECT_SECONDS)
    try:
        connection.connect(str(shared))
        socket.send_fds(connection, [b"."], OUTPUTS)
    except OSError as error:
        log.warning("no shared forge: %s", error.strerror)
        connection.close()
        return None
    return connection


def _start(environment: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A forge of our own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "kuangchao_worker.forge", str(theirs.fileno()), PADDING]
    with theirs:
        popen = subprocess.Popen(
            launched(*command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return ours, popen
