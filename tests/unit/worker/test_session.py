"""An attempt in one pod: what an agent takes from its ranks, and when the pod may end. The gate is a stand-in."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from kuangchao_contracts.errors import UnavailableError
from kuangchao_contracts.run import Directive, HeartbeatReply, HeartbeatRequest, JoinReply, JoinRequest, RankNote
from kuangchao_worker.agent import session as module
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.agent.forge import Forge
from kuangchao_worker.agent.notes import NoteQueue
from kuangchao_worker.agent.ranks import RankProcess
from kuangchao_worker.agent.session import Exit, Rejoin, Session
from kuangchao_worker.agent.settings import Settings
from kuangchao_worker.agent.vigil import Vigil
from kuangchao_worker.pod.channel import RankMessage
from tests.unit.worker.fakegate import make_launch, make_plan

NOTE = RankNote(
    rank=0, attempt=1, op="state.save", resource="job/team/job", subject="job/team/job/rank/0", reason="Expired",
    allowed=False, count=1, first=datetime(2026, 1, 1, tzinfo=UTC), jti="",
)  # fmt: skip
JOIN = JoinRequest(attempt=1, incarnation=0, pod_index=0, pod="pod-0", host="127.0.0.1")


class Control:
    """Hears heartbeats; answers once `reachable`."""

    def __init__(self) -> None:
        self.beats: list[HeartbeatRequest] = []
        self.reachable: Callable[[], bool] = lambda: True
        self.attempt: Callable[[], int] = lambda: 1

    async def call(self, op: str, resource: str, request: HeartbeatRequest, answer: Any) -> HeartbeatReply:
        self.beats.append(request)
        if not self.reachable():
            raise UnavailableError("no answer")
        return HeartbeatReply(attempt=self.attempt(), directive=Directive.CONTINUE)


class NoForge:
    """A forge that has died."""

    on_end: Any = None

    async def rank(self, *_: object) -> None:
        raise UnavailableError("the forge is gone")


def made(folder: Path, control: Control, task: str | None, *command: str) -> Session:
    launch = make_launch(make_plan(1), task, command=command or None)
    settings = Settings(
        gate_url="http://127.0.0.1:1", pod="pod-0", pod_index=0, incarnation=0, host="127.0.0.1",
        run_directory=folder, heartbeat_seconds=0.02,
    )  # fmt: skip
    reply = JoinReply(ready=True, attempt=1, launch=launch, master_host="127.0.0.1", master_port=1, store_prefix="p")
    parts = (cast("GateClient", control), JOIN, reply, launch, {}, cast("Forge", NoForge()), NoteQueue())
    return Session(settings, *parts, vigil=cast("Vigil", None))


async def test_a_pod_ends_when_its_last_word_was_heard(tmp_path: Path) -> None:
    control = Control()
    ended = lambda: sum(beat.ranks[0].exit_code is not None for beat in control.beats)  # noqa: E731 - a condition
    control.reachable = lambda: ended() > 2
    session = made(tmp_path, control, None, "-c", "pass")
    assert await asyncio.wait_for(session.run(), 60) == Exit(0)
    assert ended() == 3, "it would have ended without, and nobody would know how"


async def test_without_a_forge_a_rank_is_started_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cold_rank", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
    control = Control()
    session = made(tmp_path, control, "kuangchao_worker.tasks.mlp:mlp")
    running = asyncio.create_task(session.run())
    async with asyncio.timeout(60):
        while not running.done() and not (control.beats and control.beats[-1].ranks[0].exit_code is not None):
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert control.beats[-1].ranks[0].exit_code == 3


async def test_ranks_of_a_script_are_told_to_end_when_another_attempt_begins(tmp_path: Path) -> None:
    """As torchrun tells the survivors of a failed rank; one that saves then has time to."""
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    handler = f"lambda *_: (pathlib.Path({str(saved)!r}).touch(), os._exit(0))"
    program = f"import os, pathlib, signal, time\nsignal.signal(signal.SIGTERM, {handler})\n"
    program += f"pathlib.Path({str(ready)!r}).touch()\ntime.sleep(600)"
    control = Control()
    control.attempt = lambda: 2 if ready.exists() else 1
    session = made(tmp_path, control, None, "-c", program)
    assert await asyncio.wait_for(session.run(), 60) == Rejoin(2)
    assert saved.exists()
    assert made(tmp_path, control, "kuangchao_worker.tasks.mlp:mlp")._grace() == 0, "they wait for one another in vain"


async def test_a_rank_speaks_for_itself_and_for_its_attempt_only(tmp_path: Path) -> None:
    session = made(tmp_path, Control(), None, "-c", "pass")
    for note in (NOTE.replace(rank=1), NOTE.replace(attempt=2)):
        session._on_message(RankMessage(rank=0, notes=(note,)))
    assert session._notes.empty
    session._on_message(RankMessage(rank=0, notes=(NOTE,)))
    assert not session._notes.empty


async def test_what_a_rank_said_is_heard_before_its_end_is_judged(tmp_path: Path) -> None:
    class Ended:
        rank, exit_code, peak_bytes = 0, 1, None

        def last_words(self) -> tuple[str, str]:
            return "OtherError", "what is left on standard error"

    session = made(tmp_path, Control(), None, "-c", "pass")
    said = RankMessage(rank=0, step=7, error="said by itself", error_kind="ValueError")
    session._drain_monitor = lambda: session._on_message(said)
    session._on_exit(cast("RankProcess", Ended()))
    (report,) = session.reports()
    assert (report.error, report.error_kind, report.step) == ("said by itself", "ValueError", 7)
