"""Rank processes of this pod: start, signal, end and reap. Each is the leader of its own process group."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kuangchao_worker.agent.launcher import launched

TAIL_BYTES: Final = 8_192
KILL_SECONDS: Final = 10.0
STOPPED_STATE: Final = "T"
"""Of a process in /proc: by a signal. One that a debugger holds has a small letter."""
_RAISED: Final = re.compile(r"^(?:\[rank\d+\]: )?([A-Za-z_][\w.]*)(?::|$)")
"""torch marks every line of a traceback with the rank, once a script has made a process group."""
log = logging.getLogger("kuangchao.ranks")


class RankProcess:
    """One rank. `exit_code` is None while it runs, negative when a signal ended it."""

    def __init__(self, rank: int, pid: int, stderr: int) -> None:
        self.rank, self.pid = rank, pid
        self.exit_code: int | None = None
        self.peak_bytes: int | None = None
        """Largest resident set that it ever had; None: it was somebody else's child."""
        self._stderr: int | None = stderr
        self._tail = bytearray()
        os.set_blocking(stderr, False)
        asyncio.get_running_loop().add_reader(stderr, self._relay)

    def ended(self, code: int) -> None:
        """It has ended, and whoever was its parent has collected the status."""
        self.exit_code = code
        self._relay()

    def signal(self, number: int) -> None:
        """Signal the whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def last_words(self) -> tuple[str | None, str]:
        """(name of the exception that ended a Python program, last lines of standard error)."""
        lines = self._tail.decode("utf-8", "replace").strip().splitlines()[-12:]
        # a bar or a log line that comes after the traceback begins with a word and a colon as well
        names = (match[1].rsplit(".", 1)[-1] for line in reversed(lines) if (match := _RAISED.match(line)))
        raised = next((name for name in names if name.endswith(("Error", "Exception", "Interrupt"))), None)
        return raised, "\n".join(lines)[-800:]

    def close(self) -> None:
        """Stop relaying."""
        if self._stderr is not None:
            asyncio.get_running_loop().remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = None

    def _relay(self) -> None:
        """Pass standard error on to the pod's log and remember its end."""
        while self._stderr is not None:
            try:
                chunk = os.read(self._stderr, 65_536)
            except BlockingIOError:
                return
            if not chunk:
                self.close()
                return
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()


class Ranks:
    """All rank processes of an attempt."""

    def __init__(self, on_exit: Callable[[RankProcess], None]) -> None:
        self._on_exit = on_exit
        self._running: dict[int, RankProcess] = {}
        self._all: list[RankProcess] = []

    def start_cold(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a rank as a new program."""
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            popen = subprocess.Popen(
                launched(*command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stderr=write,
                start_new_session=True,
            )
        finally:
            os.close(write)
        # its status is collected by `on_child`, so nobody else may wait for it
        popen.returncode = 0
        self.adopt(rank, popen.pid, read)

    def adopt(self, rank: int, pid: int, stderr: int) -> None:
        """Take charge of a rank that was started."""
        process = RankProcess(rank, pid, stderr)
        self._running[pid] = process
        self._all.append(process)

    def on_child(self) -> None:
        """Reap everything that has ended, orphans of the ranks too: this is PID 1. Called on SIGCHLD."""
        while (pid := _ended_child()) is not None:
            if pid in self._running:
                # what it leaves behind; before the status is collected the id cannot belong to anybody else
                self._running[pid].signal(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                _, status, usage = os.wait4(pid, 0)
                self.on_end(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)

    def on_end(self, pid: int, code: int, peak_bytes: int | None = None) -> None:
        """A process has ended; those that are no rank of this attempt are of no interest."""
        process = self._running.pop(pid, None)
        if process is not None:
            process.peak_bytes = peak_bytes
            process.ended(code)
            self._on_exit(process)

    def signal(self, number: int) -> None:
        """Signal every rank that still runs."""
        for process in self._running.values():
            process.signal(number)

    def stopped(self) -> set[int]:
        """Ranks whose process runs no more and has not ended."""
        return {process.rank for process in self._running.values() if _state(process.pid) == STOPPED_STATE}

    async def end(self, grace: float = 0) -> None:
        """End all ranks by SIGKILL, after SIGTERM and so many seconds for those that do something about it.

        One in an uninterruptible wait cannot be ended, so waiting for it has a limit.
        """
        if grace > 0:
            self.signal(signal.SIGTERM)
            await self._wait(grace)
        self.signal(signal.SIGKILL)
        await self._wait(KILL_SECONDS)
        for process in self._all:
            process.close()
        if self._running:
            log.error("ranks %s cannot be killed", sorted(p.rank for p in self._running.values()))

    async def _wait(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        self.on_child()
        while self._running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
            self.on_child()


def _state(pid: int) -> str:
    """A letter; "" where the system does not say. The name before it may hold anything, brackets too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _ended_child() -> int | None:
    """A child that has ended and is not reaped yet; it stays so."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else None
