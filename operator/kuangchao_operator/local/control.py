"""The control plane of a run: issuer, audit, gate and the services behind it, on loopback. What the operator wires over
Kubernetes is wired here over processes and files."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import UnavailableError
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.audit.checkpoints import Checkpointer
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.gate.minting import JobRef, LayerTokens
from kuangchao_operator.gate.server import GateServer
from kuangchao_operator.gate.tls import ServingCertificate
from kuangchao_operator.gate.trust import Trust, TrustLoop
from kuangchao_operator.local.processes import MARK, Child
from kuangchao_operator.local.rundir import RunDirectory, replace_file
from kuangchao_operator.shell.ports import Authority

log = logging.getLogger(__name__)
ISSUER: Final = "kuangchao/local"
PROCESS: Final = "local-runner"
HOST: Final = "127.0.0.1"
ISSUER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What the parts of a run share."""

    gate: Gate
    sink: StoreSink
    gate_url: str
    fence: JobFence
    issuer: IssuerClient
    tokens: LayerTokens
    trust: TrustLoop


class ExecutionAuthority(Authority):
    """Execution's right to call one operation on one job."""

    def __init__(self, tokens: LayerTokens) -> None:
        self._tokens = tokens

    async def token(self, job: TrainingJob, op: str) -> str:
        """A one-shot, or a lease of this attempt."""
        meta = job.metadata
        return await self._tokens.token(Layer.EXECUTION, JobRef(meta.namespace or "", meta.name, meta.uid), op)


def now() -> datetime:
    """The clock of a run."""
    return datetime.now(UTC)


@asynccontextmanager
async def control_plane(run: RunDirectory) -> AsyncIterator[ControlPlane]:
    """Start everything and, at the end, stop it in the opposite order. Raises UnavailableError when a part fails."""
    async with AsyncExitStack() as stack:
        issuer = await _issuer(run, stack)
        trust = TrustLoop(issuer, _publisher(run))
        await trust.refresh()
        sink = StoreSink(run.audit, time.time, PROCESS)
        await sink.start()
        _sign_record(run, sink, issuer, stack)
        fence = JobFence()
        gate = Gate(PROCESS, TokenVerifier(trust.keys, ISSUER, time.time), fence, sink)
        url = await _serve(gate, trust, issuer, stack)
        yield ControlPlane(gate, sink, url, fence, issuer, LayerTokens(issuer, fence, time.time), trust)


async def _issuer(run: RunDirectory, stack: AsyncExitStack) -> IssuerClient:
    """The issuer in a process of its own: not even the runner reads its keys."""
    command = [sys.executable, "-m", "kuangchao_operator.signing", "--dir", str(run.keys), "--socket",
               str(run.issuer_socket), "--issuer", ISSUER]  # fmt: skip
    child = await Child.start(command, {**os.environ, MARK: str(run.root)}, run.root / "issuer.log")
    stack.push_async_callback(child.stop, 2.0)
    client = IssuerClient(run.issuer_socket)
    stack.push_async_callback(client.close)
    ready, ended = asyncio.create_task(client.wait_ready(ISSUER_SECONDS)), asyncio.create_task(child.wait())
    await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
    if child.exit_code is not None:
        ready.cancel()
        last = child.output.read_text("utf-8", "replace").strip().splitlines()[-1:]
        raise UnavailableError(f"the issuer ended with {child.exit_code}: {' '.join(last)} (see {child.output})")
    ended.cancel()
    await ready
    return client


def _publisher(run: RunDirectory) -> Callable[[Trust], Awaitable[None]]:
    async def publish(trust: Trust) -> None:
        replace_file(run.trust / "ca.crt", trust.ca_pem.encode())
        replace_file(run.trust / "jwks.json", trust.jwks.canonical())
        replace_file(run.trust / "policy.json", trust.policy.canonical())
        replace_file(run.trust / "audit-keys.json", trust.audit.canonical())
        replace_file(run.trust / "issuer", ISSUER.encode())

    return publish


def _sign_record(run: RunDirectory, sink: StoreSink, issuer: IssuerClient, stack: AsyncExitStack) -> None:
    """Have the audit record signed while the run lasts, and once more when all of it is there."""

    async def anchor(note: str) -> None:
        replace_file(run.root / "audit-head", note.encode())

    checkpointer = Checkpointer(run.audit, sink, issuer, anchor, log.debug, time.time)
    stack.push_async_callback(sink.close, checkpointer.finish)
    stack.callback(asyncio.create_task(checkpointer.keep()).cancel)


async def _serve(gate: Gate, trust: TrustLoop, issuer: IssuerClient, stack: AsyncExitStack) -> str:
    certificate = ServingCertificate(issuer, ("localhost",), (HOST,), time.time)
    await certificate.renew()
    server = GateServer(gate, trust.jwks)
    port = await server.start(HOST, 0, certificate.context)
    stack.push_async_callback(server.stop)
    for duty in (trust.keep(), certificate.keep()):
        stack.callback(asyncio.create_task(duty).cancel)
    return f"https://{HOST}:{port}"
