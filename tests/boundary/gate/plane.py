"""A control plane in this process beside a real issuer, its gate behind HTTPS on loopback."""

import asyncio
import contextlib
import io
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditQuery, AuditRecord
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.faults import FaultDecision, FaultReport
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports.execution import ExecutionControl, LaunchRequest, StopRequest
from kuangchao_contracts.ports.state import (
    CommitReply,
    CommitRequest,
    RestorePointReply,
    RestorePointRequest,
    StateControl,
)
from kuangchao_contracts.run import Ack, Empty, HeartbeatReply, HeartbeatRequest, JoinReply, JoinRequest
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.frontdoor import FrontDoor
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.gate.limits import CallLimits, FailureLimits
from kuangchao_operator.gate.minting import JobRef, LayerTokens, PodRef
from kuangchao_operator.gate.server import GateServer
from kuangchao_operator.gate.tls import ServingCertificate
from kuangchao_operator.gate.trust import Trust, TrustLoop
from kuangchao_operator.layers.governance.service import GovernanceService

ISSUER = "kuangchao/boundary"
JOB, POD = JobRef("team-a", "digits", "uid-1"), PodRef("digits-1-0-0", (0, 1))
JOIN = JoinRequest(attempt=1, incarnation=0, pod_index=0, pod=POD.name, host="127.0.0.1")
DAY = 86_400
ELSEWHERE = "127.0.0.2"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def one_day() -> Callable[[], float]:
    """The machine's clock, whose day does not end: who counts the records of a day may do so at midnight."""
    end = (time.time() // DAY + 1) * DAY - 1
    return lambda: min(time.time(), end)


class Execution(ExecutionControl):
    async def launch(self, capability: Capability, request: LaunchRequest) -> Ack:
        return Ack(detail="launched")

    async def stop(self, capability: Capability, request: StopRequest) -> Ack:
        return Ack()

    async def reclaim(self, capability: Capability, request: Empty) -> Ack:
        return Ack()

    async def join(self, capability: Capability, request: JoinRequest) -> JoinReply:
        capability.require_pod(request.pod)
        return JoinReply(ready=False, waiting_for="nobody", attempt=request.attempt)

    async def heartbeat(self, capability: Capability, request: HeartbeatRequest) -> HeartbeatReply:
        raise RuntimeError("a fault of ours, with /a/path")


class State(StateControl):
    def __init__(self) -> None:
        self.commits = 0

    async def assess(self, capability: Capability, request: FaultReport) -> FaultDecision:
        raise NotImplementedError

    async def commit_checkpoint(self, capability: Capability, request: CommitRequest) -> CommitReply:
        self.commits += 1
        raise e.ConflictError("the ledger moved on")

    async def restore_point(self, capability: Capability, request: RestorePointRequest) -> RestorePointReply:
        return RestorePointReply()


def issuer_arguments(home: Path) -> tuple[str, ...]:
    return ("--dir", str(home / "issuer"), "--socket", str(home / "issuer.sock"), "--issuer", ISSUER)


@contextlib.asynccontextmanager
async def process(*arguments: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process of ours that is ended at the end."""
    with log.open("ab") as output:
        child = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, env=ENVIRONMENT, stderr=output)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
        await asyncio.wait_for(child.wait(), 100)


class World:
    """A control plane in this process beside a real issuer."""

    def __init__(self, directory: Path, issuer: IssuerClient) -> None:
        self.directory, self.issuer = directory, issuer
        self.published: list[Trust] = []
        self.trust = TrustLoop(issuer, self.publish)
        self.fence, self.state = JobFence(), State()
        self.sink = StoreSink(directory / "audit", one_day())
        calls = CallLimits(lambda: self.failure_time)
        self.gate = Gate("operator", TokenVerifier(self.trust.keys, ISSUER), self.fence, self.sink, hasty=calls.hasty)
        self.tokens = LayerTokens(issuer, self.fence, time.time)
        door = FrontDoor(issuer, self.fence, time.time, self.trust.jwks)
        for port in (Execution(), self.state, door, GovernanceService(directory / "audit", lambda: self.sink.dropped)):
            self.gate.register(port)
        self.certificate = ServingCertificate(issuer, ["gate.test"], ["127.0.0.1"], time.time)
        self.failure_time = 0.0
        self.failures = FailureLimits(lambda: self.failure_time)
        self.server = self.another_server()
        self.url = ""

    def another_server(self, **options: Any) -> GateServer:
        """A server of the same gate, with other patience."""
        return GateServer(self.gate, self.trust.jwks, limits=self.failures, minted=self.issuer.minted, **options)

    async def publish(self, trust: Trust) -> None:
        self.published.append(trust)
        (self.directory / "ca.crt").write_text(trust.ca_pem)

    async def start(self) -> None:
        await self.sink.start()
        await self.trust.refresh()
        await self.certificate.renew()
        self.fence.set(JOB.uid, 1)
        self.url = f"https://127.0.0.1:{await self.server.start('127.0.0.1', 0, self.certificate.context)}"

    async def stop(self) -> None:
        await self.server.stop()
        await self.sink.close()

    def session(self) -> aiohttp.ClientSession:
        tls = ssl.create_default_context(cafile=self.directory / "ca.crt")
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=aiohttp.ClientTimeout(total=100))

    async def post(
        self, op: str, token: str | None, body: Any, headers: list[tuple[str, str]] | None = None
    ) -> tuple[int, dict[str, Any]]:
        sent = headers if headers is not None else [("Authorization", f"Bearer {token}")] if token else []
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with (
            self.session() as session,
            session.post(f"{self.url}/v1/call/{op}", data=data, headers=sent) as response,
        ):
            return response.status, await response.json()

    async def call(
        self, op: str, token: str | None, request: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        return await self.post(op, token, {"resource": JOB.resource, "request": request or {}})

    def records(self) -> list[AuditRecord]:
        return [item.record for item in query(self.directory / "audit", AuditQuery()).records]
