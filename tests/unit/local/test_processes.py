"""Children die with the runner, end within their grace period and leave no descendants."""

import asyncio
import os
import sys
from pathlib import Path

from kuangchao_operator.local.processes import MARK, Child, strays, sweep

STUBBORN = "import signal,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
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
    async with asyncio.timeout(20):
        while not child.output.read_text().endswith("\n"):
            await asyncio.sleep(0.01)
    return child.output.read_text().strip()


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
    async with asyncio.timeout(20):
        while alive(grandchild):
            await asyncio.sleep(0.01)


async def test_children_die_when_the_runner_is_killed(tmp_path: Path) -> None:
    runner = f"""
import asyncio, os, pathlib, sys
from kuangchao_operator.local.processes import Child
async def main():
    child = await Child.start([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, pathlib.Path({str(tmp_path)!r}) / "x.log")
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    outer = await Child.start(
        [sys.executable, "-c", runner], {**environment(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}, tmp_path / "out.log"
    )
    inner = int(await line(outer))
    assert alive(inner)
    os.kill(outer.pid, 9)
    await outer.wait()
    async with asyncio.timeout(20):
        while alive(inner):
            await asyncio.sleep(0.01)
