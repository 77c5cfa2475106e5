"""Children die with the runner, end within their grace period and leave no descendants."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kuangchao_operator.local.processes import MARK, Child, strays, sweep

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(600)
"""
RUNNER = """
import asyncio, os, pathlib, sys
from kuangchao_operator.local.processes import Child
async def main():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = await Child.start(command, os.environ, pathlib.Path(sys.argv[1]) / "x.log")
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def environment(run: Path) -> dict[str, str]:
    return {**os.environ, MARK: str(run)}


async def started(run: Path, code: str) -> Child:
    return await Child.start([sys.executable, "-c", code], environment(run), run / "out.log")


async def line(child: Child) -> str:
    await eventually(lambda: child.output.read_text().endswith("\n"))
    return child.output.read_text().strip()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait on a thread, so that the event loop reaps processes meanwhile."""

    def wait() -> None:
        deadline = time.monotonic() + 100
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    await asyncio.to_thread(wait)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_exit_codes_are_those_of_a_container(tmp_path: Path) -> None:
    assert await (await started(tmp_path, "raise SystemExit(7)")).wait() == 7
    assert await (await started(tmp_path, "import os; os.kill(os.getpid(), 9)")).wait() == 137


async def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    child = await started(tmp_path, STUBBORN)
    await line(child)
    await child.stop(grace_seconds=0.1)
    assert child.exit_code == 137
    assert not alive(child.pid)


async def test_stop_of_an_ended_process_is_nothing(tmp_path: Path) -> None:
    child = await started(tmp_path, "pass")
    await child.wait()
    await child.stop(grace_seconds=30)
    assert child.exit_code == 0


async def test_sweep_finds_descendants_in_sessions_of_their_own(tmp_path: Path) -> None:
    child = await started(tmp_path, PARENT)
    grandchild = int(await line(child))
    await child.stop(grace_seconds=5)
    assert list(strays(tmp_path)) == [grandchild]
    assert sweep(tmp_path) == [grandchild]
    assert not alive(grandchild), "it has ended, and is not only told to"


async def test_children_die_when_the_runner_is_killed(tmp_path: Path) -> None:
    inherited = {**environment(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    outer = await Child.start([sys.executable, "-c", RUNNER, str(tmp_path)], inherited, tmp_path / "out.log")
    inner = int(await line(outer))
    assert alive(inner)
    os.kill(outer.pid, 9)
    await outer.wait()
    await eventually(lambda: not alive(inner))
