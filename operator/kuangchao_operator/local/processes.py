"""Child processes of a run: started so that they die with us, ended so that nothing is left. Knows no roles."""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kuangchao_contracts.errors import UnavailableError

MARK: Final = "KUANGCHAO_LOCAL_RUN"
"""Environment variable that every process of a run inherits: the run's directory, by which strays are found."""
KILL_SECONDS: Final = 10.0
"""Limit of the wait for processes that were killed: one in an uninterruptible wait of the kernel does not end."""
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Child:
    """One process in a session of its own, so that a terminal's Ctrl-C reaches only the runner, which then decides."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path) -> None:
        self._process, self.output = process, output

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], output: Path, descriptors: Sequence[int] = ()
    ) -> "Child":
        """Start a command with its output appended to a file; it inherits `descriptors`.

        Raises UnavailableError when it cannot be started.
        """
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with output.open("ab") as file:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    env=dict(environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=file,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=descriptors,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            raise UnavailableError(f"cannot start {command[0]}: {error.strerror}") from None
        return cls(process, output)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code as a container runtime gives it (128 + signal), or None while it runs."""
        code = self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    async def wait(self) -> int:
        """Wait for the end."""
        await self._process.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, then after the grace period SIGKILL for the whole session; returns when it is reaped."""
        if self.exit_code is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group on SIGKILL (the leader may have left others behind), the leader alone otherwise."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def _die_with_parent() -> None:
    """Runs in the child before exec: SIGKILL me when the runner dies, even by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def strays(run: Path) -> Iterator[int]:
    """Processes of a run that still live, whoever their parent is now."""
    mark = f"{MARK}={run}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            # a process may end while it is looked at, and those of other users cannot be read
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def sweep(run: Path) -> list[int]:
    """End with SIGKILL what is left of a run, and wait until it has; returns whom it met."""
    killed: dict[int, int] = {}
    with contextlib.ExitStack() as opened:
        for pid in strays(run):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                killed[pid] = os.pidfd_open(pid)
                opened.callback(os.close, killed[pid])
                signal.pidfd_send_signal(killed[pid], signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        for watched in killed.values():
            select.select([watched], [], [], max(0.0, deadline - time.monotonic()))
    return list(killed)
