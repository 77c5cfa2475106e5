"""The whole way: issuer process, minting, HTTPS gate, audit store, governance process. Loopback only."""

import asyncio
import contextlib
import io
import json
import logging
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditPage, AuditQuery, AuditRecord, Decision
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Grant
from kuangchao_contracts.faults import FaultDecision, FaultReport
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.minting import CertificateRequest, MintRequest
from kuangchao_contracts.ports.execution import ExecutionControl, LaunchRequest, StopRequest
from kuangchao_contracts.ports.state import (
    CommitReply,
    CommitRequest,
    RestorePointReply,
    RestorePointRequest,
    StateControl,
)
from kuangchao_contracts.run import Ack, Empty, FeedReply, HeartbeatReply, HeartbeatRequest, JoinReply, JoinRequest
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.audit.k8s import KubernetesIntake
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.server import EVENTS_PATH, IntakeServer, intake_tls
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.verify import verify
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.frontdoor import FrontDoor
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.gate.minting import JobRef, LayerTokens, PodRef
from kuangchao_operator.gate.server import GateServer
from kuangchao_operator.gate.tls import ServingCertificate
from kuangchao_operator.gate.trust import Trust, TrustLoop
from kuangchao_operator.layers.governance.service import GovernanceService
from tests.unit.authority.kit import TOKEN

ISSUER = "kuangchao/boundary"
JOB, POD = JobRef("team-a", "digits", "uid-1"), PodRef("digits-1-0-0", (0, 1))
JOIN = JoinRequest(attempt=1, incarnation=0, pod_index=0, pod=POD.name, host="127.0.0.1")
ELSEWHERE = "127.0.0.2"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


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
        await asyncio.wait_for(child.wait(), 20)


class World:
    """A control plane in this process beside a real issuer."""

    def __init__(self, directory: Path, issuer: IssuerClient) -> None:
        self.directory, self.issuer = directory, issuer
        self.published: list[Trust] = []
        self.trust = TrustLoop(issuer, self.publish)
        self.fence, self.state = JobFence(), State()
        self.sink = StoreSink(directory / "audit", time.time)
        self.gate = Gate("operator", TokenVerifier(self.trust.keys, ISSUER), self.fence, self.sink)
        self.tokens = LayerTokens(issuer, self.fence, time.time)
        door = FrontDoor(issuer, self.fence, time.time, self.trust.jwks)
        for port in (Execution(), self.state, door, GovernanceService(directory / "audit", lambda: self.sink.dropped)):
            self.gate.register(port)
        self.certificate = ServingCertificate(issuer, ["gate.test"], ["127.0.0.1"], time.time)
        self.server = GateServer(self.gate, self.trust.jwks)
        self.url = ""

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
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=aiohttp.ClientTimeout(total=20))

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


@pytest.fixture(scope="module")
def issuer_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of an issuer process that serves all tests of this file."""
    home = tmp_path_factory.mktemp("issuer")
    command = [sys.executable, "-m", "kuangchao_operator.signing", *issuer_arguments(home)]
    with (home / "log").open("wb") as log:
        child = subprocess.Popen(command, env=ENVIRONMENT, stderr=log)
    try:
        yield home
    finally:
        child.terminate()
        assert child.wait(20) == 0
    text = (home / "log").read_text()
    assert "issuer listens" in text
    assert not TOKEN.search(text)
    assert not (home / "issuer.sock").exists()


def issuer_arguments(home: Path) -> tuple[str, ...]:
    return ("--dir", str(home / "issuer"), "--socket", str(home / "issuer.sock"), "--issuer", ISSUER)


@pytest.fixture
async def world(tmp_path: Path, issuer_home: Path) -> AsyncIterator[World]:
    async with IssuerClient(issuer_home / "issuer.sock") as issuer:
        await issuer.wait_ready(60)
        world = World(tmp_path, issuer)
        await world.start()
        yield world
        await world.stop()


async def test_a_worker_joins_over_https(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    assert "eyJ" not in repr(bundle)
    status, answer = await world.call("execution.join", bundle.token("agent", "kc:execution"), JOIN.wire())
    assert (status, answer) == (200, JoinReply(ready=False, waiting_for="nobody", attempt=1).wire())
    intent, result = world.records()
    assert (intent.opid, intent.subject) == (result.opid, f"agent:team-a/digits/{POD.name}")


async def test_every_lease_of_a_bundle_is_good_for_its_calls_and_no_other(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    assert sorted(bundle.tokens) == [
        "agent/kc:execution", "agent/kc:interface", "agent/kc:state",
        "rank/kc:execution", "rank/kc:state", "rank/kc:topology",
    ]  # fmt: skip
    verifier = TokenVerifier(world.trust.keys, ISSUER)
    for key, token in bundle.tokens.items():
        role, audience = key.split("/")
        claims, _ = verifier.verify(token, audience)
        assert (claims.role, claims.pod, claims.att, claims.one) == (role, POD.name, 1, False)
        assert claims.holds_ranks([0, 1])
        assert not claims.holds_ranks([2])
    assert (await world.call("state.restore_point", bundle.token("agent", "kc:state"), {"attempt": 1}))[0] == 200
    for role, audience in (("rank", "kc:state"), ("agent", "kc:execution"), ("agent", "kc:interface")):
        assert (await world.call("state.restore_point", bundle.token(role, audience), {"attempt": 1}))[0] in (401, 403)
    with pytest.raises(e.MalformedTokenError):
        bundle.token("rank", "kc:interface")


async def test_exchange_gives_one_commit(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    lease = bundle.token("agent", "kc:interface")
    wanted = {"op": "state.commit_checkpoint", "resource": JOB.resource}
    status, answer = await world.call("interface.exchange", lease, wanted)
    assert status == 200
    claims, _ = TokenVerifier(world.trust.keys, ISSUER).verify(answer["token"], "kc:state")
    parent, _ = TokenVerifier(world.trust.keys, ISSUER).verify(lease, "kc:interface")
    assert (claims.par, claims.one, claims.att, claims.pod) == (parent.jti, True, 1, POD.name)
    commit = {
        "path": "step-1.att-1",
        "manifest": {},
    }
    assert (await world.call("state.commit_checkpoint", answer["token"], commit))[0] == 400  # not used up: nothing done
    assert (await world.call("state.commit_checkpoint", lease, commit))[0] == 401
    assert world.state.commits == 0


@pytest.mark.parametrize(
    "wanted",
    [
        {"op": "execution.launch", "resource": JOB.resource},
        {"op": "state.restore_point", "resource": JOB.resource},
        {"op": "state.nothing", "resource": JOB.resource},
        {"op": "state.commit_checkpoint", "resource": "team-a/jobs/other"},
        {"op": "state.commit_checkpoint", "resource": "team-b/jobs/digits"},
        {"op": "state.commit_checkpoint", "resource": "*"},
    ],
)
async def test_exchange_gives_nothing_else(world: World, wanted: dict[str, Any]) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    status, answer = await world.call("interface.exchange", bundle.token("agent", "kc:interface"), wanted)
    assert (status, answer["error"]) == (403, "denied")
    result = world.records()[-1]
    assert (result.decision, result.reason) == (Decision.DENY, "ExchangeDenied")


async def test_feed_tells_a_late_worker_that_it_is_late(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    lease = bundle.token("agent", "kc:interface")
    world.fence.set(JOB.uid, 2)
    world.fence.take_back({"A" * 22: int(time.time()) + 60}, ())
    status, answer = await world.call("interface.feed", lease)
    assert status == 200
    feed = FeedReply.model_validate(answer)
    assert (feed.attempt, feed.policy_generation, feed.revoked) == (2, 1, ("A" * 22,))
    assert (await world.call("execution.join", bundle.token("agent", "kc:execution"), JOIN.wire()))[0] == 401
    world.fence.close(JOB.uid)
    assert (await world.call("interface.feed", lease))[1]["attempt"] == 0
    world.fence.set(JOB.uid, 2)
    assert world.fence.attempt(JOB.uid) is None
    world.fence.set(JOB.uid, 3)
    assert world.fence.attempt(JOB.uid) == 3


async def test_layer_tokens(world: World) -> None:
    launch = LaunchRequest(attempt=1, incarnation=0, plan_hash="0" * 64)
    for _ in range(2):
        token = await world.tokens.token(Layer.EXECUTION, JOB, "execution.launch")
        assert await world.gate.call(token, "execution.launch", JOB.resource, launch) == Ack(detail="launched")
    with pytest.raises(e.ReplayedTokenError):
        await world.gate.call(token, "execution.launch", JOB.resource, launch)
    before = await world.tokens.token(Layer.EXECUTION, JOB, "execution.launch")
    world.fence.set(JOB.uid, 2)
    with pytest.raises(e.StaleEpochError):
        await world.gate.call(before, "execution.launch", JOB.resource, launch)
    world.fence.close(JOB.uid)
    reclaim = await world.tokens.token(Layer.EXECUTION, JOB, "execution.reclaim")
    assert isinstance(await world.gate.call(reclaim, "execution.reclaim", JOB.resource, Empty()), Ack)
    leases = [await world.tokens.token(Layer.EXECUTION, JOB, "strategy.plan") for _ in range(2)]
    assert leases[0] == leases[1]
    world.tokens.forget(JOB.uid)
    assert await world.tokens.token(Layer.EXECUTION, JOB, "strategy.plan") != leases[0]
    with pytest.raises(e.PermissionDeniedError):
        await world.tokens.token(Layer.STATE, JOB, "strategy.plan")


OUTWARD: dict[str, tuple[str, list[tuple[str, str]], int, str]] = {
    "no header": ("execution.join", [], 401, "invalid_token"),
    "two headers": ("execution.join", [("Authorization", "Bearer {t}"), ("Authorization", "Bearer {t}")], 401,
                    "invalid_token"),
    "Bearer twice": ("execution.join", [("Authorization", "Bearer Bearer {t}")], 401, "invalid_token"),
    "other scheme": ("execution.join", [("Authorization", "Basic {t}")], 401, "invalid_token"),
    "lower case": ("execution.join", [("Authorization", "bearer {t}")], 401, "invalid_token"),
    "two tokens": ("execution.join", [("Authorization", "Bearer {t},{t}")], 401, "invalid_token"),
    "garbage": ("execution.join", [("Authorization", "Bearer a.b.c")], 401, "invalid_token"),
    "in another header": ("execution.join", [("X-Forwarded-Authorization", "Bearer {t}")], 401, "invalid_token"),
    "other audience": ("state.restore_point", [("Authorization", "Bearer {t}")], 401, "invalid_token"),
    "not granted": ("execution.launch", [("Authorization", "Bearer {t}")], 403, "denied"),
    "unknown operation": ("execution.explode", [("Authorization", "Bearer {t}")], 403, "denied"),
}  # fmt: skip


async def test_refusals_say_nothing_and_are_recorded_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")
    for number, (op, headers, status, word) in enumerate(OUTWARD.values(), start=1):
        sent = [(name, value.format(t=token)) for name, value in headers]
        got, answer = await world.post(op, None, {"resource": JOB.resource, "request": JOIN.wire()}, sent)
        assert (got, set(answer), answer["error"]) == (status, {"error", "message", "opid"}, word)
        assert answer["message"] == ""
        records = world.records()
        assert len(records) == number
        assert (records[-1].opid, records[-1].decision) == (answer["opid"], Decision.DENY)
        assert not TOKEN.search(records[-1].canonical().decode())
    assert token.split(".")[1] not in caplog.text


async def test_bad_bodies(world: World) -> None:
    token = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")
    good = {"resource": JOB.resource, "request": JOIN.wire()}
    for body in (b"", b"[]", b"{", b'{"resource":"a","resource":"b","request":{}}', {**good, "x": 1}, {"resource": 1}):
        status, answer = await world.post("execution.join", token, body)
        assert (status, answer["error"]) == (400, "InvalidInput")
    status, answer = await world.call("execution.join", token, {"attempt": "hunter2"})
    assert (status, "hunter2" in json.dumps(answer)) == (400, False)
    status, answer = await world.post("execution.join", token, {"resource": "x" * 5_000, "request": {}})
    assert (status, answer["error"]) == (403, "denied")
    status, answer = await world.post("execution.join", token, b"x" * (8 * 1024 * 1024 + 1))
    assert (status, answer["error"]) == (413, "TooLarge")


async def test_our_own_faults_show_nothing(world: World) -> None:
    token = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")
    body = HeartbeatRequest(join=JOIN, ranks=()).wire()
    status, answer = await world.call("execution.heartbeat", token, body)
    assert (status, answer["error"], answer["message"]) == (500, "Internal", "")


async def test_public_endpoints_and_tls(world: World) -> None:
    async with world.session() as session:
        async with session.get(f"{world.url}/healthz") as response:
            assert await response.text() == "ok"
        async with session.get(f"{world.url}/v1/jwks") as response:
            keys = Jwks.model_validate(await response.json())
        assert keys == world.trust.jwks() == world.published[-1].jwks
        port = world.url.rsplit(":", 1)[1]
        with pytest.raises(aiohttp.ClientConnectorError):  # not a name of the certificate
            await session.get(f"https://localhost:{port}/healthz")
    async with aiohttp.ClientSession() as stranger:
        with pytest.raises(aiohttp.ClientConnectorError):  # not a CA that the system knows
            await stranger.get(f"{world.url}/healthz")
    before = await served_certificate(world)
    await world.certificate.renew()
    assert await served_certificate(world) != before


async def served_certificate(world: World) -> bytes:
    tls = ssl.create_default_context(cafile=world.directory / "ca.crt")
    port = int(world.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    served: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return served


async def test_keys_are_the_issuers_alone(world: World, issuer_home: Path) -> None:
    socket = issuer_home / "issuer.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o660
    files = [p for p in (issuer_home / "issuer").rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".key", ".json", ".pem"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}
    modules = ("gate.server", "gate.minting", "gate.tls", "gate.trust", "gate.frontdoor", "audit.sink", "audit.server")
    imports = ", ".join(f"kuangchao_operator.{name}" for name in modules)
    check = f"import sys, {imports}; sys.exit('kuangchao_operator.signing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], env=ENVIRONMENT, timeout=60).returncode == 0


async def test_issuer_refuses_with_the_reason_and_mints_batches(world: World) -> None:
    wanted = MintRequest(
        subject="layer:governance", audience="kc:execution", namespace="team-a", job="digits", job_uid="uid-1",
        grants=(Grant(op="execution.stop", res=JOB.resource),), one_shot=True, lifetime_seconds=60,
    )  # fmt: skip
    with pytest.raises(e.SeparationOfDutyError):
        await world.issuer.mint([wanted])
    with pytest.raises(e.InvalidInputError):
        await world.issuer.certificate(CertificateRequest(csr_pem="x", dns_names=("a",)))
    pods = [PodRef(f"p-{n}", (n,)) for n in range(300)]
    bundles = await world.tokens.worker_bundles(JOB, 1, pods)
    assert len({token for bundle in bundles for token in bundle.tokens.values()}) == 1_800


async def test_issuer_away_and_back(tmp_path: Path) -> None:
    socket, arguments = tmp_path / "issuer.sock", issuer_arguments(tmp_path)
    async with IssuerClient(socket, timeout_seconds=5) as client:
        with pytest.raises(e.UnavailableError):
            await client.jwks()
        async with process("kuangchao_operator.signing", *arguments, log=tmp_path / "log") as child:
            await client.wait_ready(60)
            keys = await client.jwks()
            child.send_signal(signal.SIGKILL)
        assert socket.exists()
        with pytest.raises(e.UnavailableError):
            await client.ca()
        async with process("kuangchao_operator.signing", *arguments, log=tmp_path / "log"):
            await client.wait_ready(60)
            assert await client.jwks() == keys


async def test_governance_process_answers_queries_and_only_reads(world: World, tmp_path: Path) -> None:
    agent = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    await world.call("execution.join", agent.token("agent", "kc:execution"), JOIN.wire())
    bundle = await world.tokens.audit_bundle()
    (tmp_path / "bundle.json").write_text(json.dumps(bundle.wire()))
    port, audit_port = free_port(), free_port()
    arguments = ("--gate", world.url, "--bundle", str(tmp_path / "bundle.json"), "--ca", str(tmp_path / "ca.crt"),
                 "--port", str(port), "--audit-port", str(audit_port))  # fmt: skip
    async with (
        process("kuangchao_operator.layers.governance", *arguments, log=tmp_path / "governance.log"),
        aiohttp.ClientSession(f"http://{ELSEWHERE}:{port}") as anywhere,
        aiohttp.ClientSession(f"http://127.0.0.1:{audit_port}") as session,
    ):
        await answers(anywhere)
        await only_on_loopback(anywhere, audit_port)
        async with session.get("/v1/audit", params={"operation": "execution.join", "limit": "1"}) as response:
            page = AuditPage.model_validate(await response.json())
        assert [item.record.op for item in page.records] == ["execution.join"]
        assert page.next_after == page.records[0].seq
        for bad in ({"limit": "0"}, {"x": "1"}, [("job", "a"), ("job", "b")]):
            async with session.get("/v1/audit", params=bad) as response:
                assert response.status == 400
        async with session.post("/v1/audit") as response:
            assert response.status == 405
        await wait_for_metric(anywhere, 'kuangchao_audit_records_total{decision="allow",layer="execution"')
        token = bundle.token("governance", "kc:governance")
        assert (await world.call("execution.join", token, JOIN.wire()))[0] == 401
    assert not TOKEN.search((tmp_path / "governance.log").read_text())


async def only_on_loopback(anywhere: aiohttp.ClientSession, audit_port: int) -> None:
    """An address that is this machine's as well, but not the one that audit queries are bound to."""
    async with anywhere.get("/v1/audit") as response:
        assert response.status == 404
    with pytest.raises(aiohttp.ClientConnectorError):
        await anywhere.get(f"http://{ELSEWHERE}:{audit_port}/v1/audit")


async def wait_for_metric(session: aiohttp.ClientSession, wanted: str) -> None:
    async with asyncio.timeout(60):
        while True:
            async with session.get("/metrics") as response:
                if wanted in await response.text():
                    return
            await asyncio.sleep(0.05)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answers(session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get("/healthz"):
                    return
            await asyncio.sleep(0.05)


async def certificate(world: World, path: Path, *, client: bool) -> None:
    """Key and certificate of the issuer's CA in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    reply = await world.issuer.certificate(
        CertificateRequest(csr_pem=csr.public_bytes(Encoding.PEM).decode(), ip_addresses=("127.0.0.1",), client=client)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    path.write_text(private + reply.chain_pem)


async def test_kubernetes_events_come_in_over_mtls_only(world: World, tmp_path: Path) -> None:
    server_pem, client_pem, ca = tmp_path / "server.pem", tmp_path / "client.pem", tmp_path / "ca.crt"
    await certificate(world, server_pem, client=False)
    await certificate(world, client_pem, client=True)
    intake = IntakeServer(KubernetesIntake(world.sink, time.time))
    port = await intake.start("127.0.0.1", 0, intake_tls(server_pem, server_pem, ca))
    event = {
        "auditID": "1", "stage": "ResponseComplete", "verb": "create", "user": {"username": "alice"},
        "objectRef": {"resource": "trainingjobs", "namespace": "team-a", "name": "digits"},
        "responseStatus": {"code": 201},
    }  # fmt: skip
    stranger = ssl.create_default_context(cafile=ca)
    known = ssl.create_default_context(cafile=ca)
    known.load_cert_chain(client_pem)
    url = f"https://127.0.0.1:{port}{EVENTS_PATH}"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(url, json={"items": [event]}, ssl=stranger)
        async with session.post(url, json={"items": [event]}, ssl=known) as response:
            assert response.status == 200
        async with session.post(url, data=b"x", ssl=known) as response:
            assert response.status == 400
    await intake.stop()
    await world.stop()
    assert [r.subject for r in world.records()] == ["user:alice"]
    assert verify(tmp_path / "audit").ok
