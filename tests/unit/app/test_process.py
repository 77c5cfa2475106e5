"""The order in which the operator starts: no agent is told that its job is closed because the operator is new."""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kuangchao_contracts.audit import Stage
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import AuditUnavailableError, UnavailableError
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.run import Empty
from kuangchao_operator.app import process
from kuangchao_operator.app.settings import Settings
from kuangchao_operator.app.wiring import Parts
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.frontdoor import FrontDoor
from kuangchao_operator.handlers.jobs import JobLoops
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.shell.loop import LoopPorts
from tests.unit.authority.records import record
from tests.unit.kube.bodies import UID, job

INTENT = record(stage=Stage.INTENT, op="execution.launch")
RUNNING = {"attempt": 3, "incarnation": 1}


def condition(kind: str, reason: str, status: str = "True") -> dict[str, Any]:
    return {
        "conditions": [{"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    }


class Start:
    """The real facts, fence and front door; everything else only takes note of when it was started."""

    def __init__(self, monkeypatch: Any, *jobs: dict[str, Any], outages: int = 0) -> None:
        self.log: list[str] = []
        self.heard: dict[str, int] = {}
        self._jobs, self._outages = jobs, outages
        self.policy_faults: list[Exception] = []
        self.audit_faults: list[Exception] = []
        self.cache, self.fence = Cache(), JobFence()
        self._door = FrontDoor(cast(Any, None), self.fence, time.time, lambda: Jwks(keys=()))
        ports = cast(LoopPorts, SimpleNamespace(fence=self.fence))
        self.parts = cast(Parts, SimpleNamespace(
            health=SimpleNamespace(start=self._note("health"), stop=self._note("")),
            issuer=SimpleNamespace(wait_ready=self._note("issuer")),
            sink=SimpleNamespace(
                start=self._open, close=self._note(""), interrupted=(INTENT,), durable=self._note("settled")
            ),
            checkpointer=SimpleNamespace(finish=self._note("")),
            reader=SimpleNamespace(fill=self._fill),
            policy=SimpleNamespace(refresh=self._policy),
            truth=SimpleNamespace(of=self._note("truth")),
            trust=SimpleNamespace(refresh=self._note("trust")),
            revocations=SimpleNamespace(look=self._note("revocations"), recall=lambda: self.log.append("recall")),
            certificate=SimpleNamespace(renew=self._note("certificate"), context=None),
            loops=JobLoops(self.cache, ports),
            gate_server=SimpleNamespace(start=self._serve, stop=self._note("")),
        ))  # fmt: skip
        monkeypatch.setattr(process.asyncio, "sleep", self._note("wait"))

    async def run(self, tmp_path: Path) -> None:
        """Up to the point where the gate listens."""
        settings = cast(Settings, SimpleNamespace(
            host="127.0.0.1", metrics_port=0, gate_port=0, audit_tls_dir=None, audit_dir=tmp_path,
        ))  # fmt: skip
        async with AsyncExitStack() as stack:
            await process._start(settings, self.parts, stack)

    def _note(self, name: str) -> Any:
        async def note(*_: Any) -> None:
            self.log.append(name)

        return note

    async def _open(self) -> None:
        self.log.append("audit")
        if self.audit_faults:
            raise self.audit_faults.pop(0)

    async def _policy(self) -> None:
        self.log.append("policy")
        if self.policy_faults:
            raise self.policy_faults.pop(0)

    async def _fill(self) -> None:
        self.log.append("list")
        if self._outages:
            self._outages -= 1
            raise UnavailableError("the API server is away")
        for body in self._jobs:
            self.cache.see("TrainingJob", body)

    async def _serve(self, *_: Any) -> None:
        """The first moment at which an agent can be answered."""
        self.log.append("gate")
        for body in self._jobs:
            uid = body["metadata"]["uid"]
            capability = cast(Capability, SimpleNamespace(claims=SimpleNamespace(juid=uid)))
            self.heard[body["metadata"]["name"]] = (await self._door.feed(capability, Empty())).attempt


async def test_agents_of_running_jobs_hear_their_attempt_from_the_first_answer_on(
    monkeypatch: Any, tmp_path: Path
) -> None:
    start = Start(
        monkeypatch,
        job("running", status=RUNNING),
        job("suspending", uid="u2", spec={"suspend": True},
            status={**RUNNING, **condition("Suspended", "Suspending", "False")}),
        job("suspended", uid="u3", status={**RUNNING, **condition("Suspended", "Suspended")}),
        job("done", uid="u4", status={**RUNNING, **condition("Complete", "Succeeded")}),
        job("queued", uid="u5", status={}),
        outages=2,
    )  # fmt: skip
    await start.run(tmp_path)
    assert start.heard == {"running": 3, "suspending": 3, "suspended": 0, "done": 0, "queued": 0}
    assert start.fence.attempt(UID) == 3
    order = [name for name in start.log if name in ("audit", "list", "settled", "policy", "revocations", "gate")]
    expected = ["audit", "list", "list", "list", "settled", "policy", "revocations", "gate"]
    assert order == expected, "recorded, known, what was open is closed, allowed, taken back, then it listens"


async def test_neither_an_api_server_that_is_late_nor_a_full_audit_volume_keeps_it_from_starting(
    monkeypatch: Any, tmp_path: Path
) -> None:
    start = Start(monkeypatch, job("running", status=RUNNING))
    start.policy_faults = [UnavailableError("not up yet"), AuditUnavailableError("audit volume is full")]
    await start.run(tmp_path)
    assert start.heard == {"running": 3}
    assert start.log.count("policy") == 2


async def test_agents_silence_counts_from_the_first_decision_on() -> None:
    log: list[str] = []

    class Loops:
        def start(self) -> None:
            log.append("decide")

        def __len__(self) -> int:
            return 0

    parts, watching = SimpleNamespace(
        facts=SimpleNamespace(begin=lambda: log.append("begin")), loops=Loops(), ready=SimpleNamespace(value=False)
    ), asyncio.Event()  # fmt: skip
    deciding = asyncio.ensure_future(process._decide(cast(Parts, parts), watching))
    await asyncio.sleep(0)
    assert log == [], "not before events flow"
    watching.set()
    while not parts.ready.value:
        await asyncio.sleep(0)
    deciding.cancel()
    assert log == ["begin", "decide"]


async def test_a_signal_ends_a_start_that_waits() -> None:
    """The first process of a container is ended by no signal that it does not take."""
    waiting = asyncio.Event()

    async def start() -> None:
        waiting.set()
        await asyncio.Event().wait()

    begun = asyncio.ensure_future(process._unless_told_to_end(start()))
    await waiting.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not await asyncio.wait_for(begun, 100)


async def test_without_a_record_nothing_begins_and_it_is_said_why(
    monkeypatch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(monkeypatch, job("running", status=RUNNING))
    start.audit_faults = [AuditUnavailableError(why) for why in ("no right to write", "no right to write", "disk")]
    await start.run(tmp_path)
    assert start.log[:10] == ["health", "issuer", *["audit", "wait"] * 3, "audit", "recall"], "nothing else"
    said = [line.getMessage() for line in caplog.records if line.levelname == "CRITICAL"]
    assert said == [
        f"operator does nothing until this is mended: AuditUnavailableError: {why}"
        for why in ("no right to write", "disk")
    ]
    assert start.heard == {"running": 3}
