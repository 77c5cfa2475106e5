"""A control plane small enough for a test: the real gate and tokens over loopback, ledger and fault rule in memory."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, AuditSink
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.gate import Fence, Gate
from kuangchao_contracts.keys import Jwks, KeySet, b64url, public_key
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan, TrainingSpec
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.execution import ExecutionControl, LaunchRequest, StopRequest
from kuangchao_contracts.ports.interface import InterfaceControl
from kuangchao_contracts.ports.state import StateControl
from kuangchao_contracts.run import (
    Ack,
    CommitReply,
    CommitRequest,
    Directive,
    Empty,
    ExchangeReply,
    ExchangeRequest,
    FeedReply,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LaunchSpec,
    RestorePointReply,
    RestorePointRequest,
)
from kuangchao_contracts.tokens import ALGORITHM, TOKEN_TYPE, TokenVerifier
from kuangchao_contracts.wire import CALL_PATH, CallEnvelope, TokenBundle, bundle_key, to_reply
from tests.forge import shared_forge

ISSUER = "kuangchao/test"
UID = "11111111-2222-3333-4444-555555555555"
ROOT = Path(__file__).parents[3]
PATIENCE = 300.0
"""Limit of every wait for something that will happen. It bounds a hang: a machine may be as slow as it is."""


def make_plan(world: int, per_pod: int = 1, batch: int = 32, accumulation: int = 1, **sizes: Any) -> ParallelPlan:
    """A data-parallel plan."""
    return ParallelPlan.model_validate(
        {
            "world_size": world,
            "per_pod": per_pod,
            "pods": world // per_pod,
            "data": world,
            "micro_batch": batch // world // accumulation,
            "accumulation_steps": accumulation,
            "global_batch": batch,
            "groups": (AxisGroups(axis=Axis.DATA, size=world, stride=1),),
            "memory_checked": False,
            "device_memory_bytes": 0,
            "request_digest": "0" * 64,
            **sizes,
        }
    )


def make_launch(
    plan: ParallelPlan,
    task: str | None = "kuangchao_worker.tasks.digits:digits",
    *,
    steps: int = 30,
    seed: int = 5,
    **fields: Any,
) -> LaunchSpec:
    """A launch specification."""
    training = TrainingSpec(global_batch=plan.global_batch, steps=steps, seed=seed)
    return LaunchSpec(namespace="team", job="job", job_uid=UID, task=task, training=training, plan=plan, **fields)


class Issuer:
    """Mints tokens as the real issuer does."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.entry = public_key(self._key.public_key())
        self.jwks = Jwks(keys=(self.entry,))
        self.generation = BUILT_IN.generation

    def mint(
        self,
        subject: str,
        audience: str,
        ops: Sequence[str],
        attempt: int,
        *,
        one: bool = False,
        lifetime: int | None = None,
        now: float | None = None,
    ) -> str:
        """One token."""
        issued = int(now if now is not None else time.time())
        claims = {
            "iss": ISSUER,
            "sub": subject,
            "aud": audience,
            "iat": issued,
            "nbf": issued,
            "exp": issued + (lifetime or (60 if one else 300)),
            "jti": b64url(secrets.token_bytes(16)),
            "cap": [{"op": op, "res": job_resource("team", "job")} for op in ops],
            "ns": "team",
            "job": "job",
            "juid": UID,
            "att": attempt,
            "polv": self.generation,
            "one": one,
            "pod": subject.rsplit("/", 1)[-1],
            "ranks": "0-63",
        }
        return jwt.encode(claims, self._key, ALGORITHM, headers={"typ": TOKEN_TYPE, "kid": self.entry.kid})

    def bundle(self, pod: str, attempt: int, now: float | None = None) -> TokenBundle:
        """What is mounted into a pod."""
        tokens = {}
        for role in ("agent", "rank"):
            for audience in sorted({OPERATIONS[op].layer.audience for op in BUILT_IN.rights[role]}):
                ops = [op for op in sorted(BUILT_IN.rights[role]) if OPERATIONS[op].layer.audience == audience]
                tokens[bundle_key(role, audience)] = self.mint(
                    f"{role}:team/job/{pod}", audience, ops, attempt, now=now
                )
        return TokenBundle(tokens=tokens, attempt=attempt, expires=int(now or time.time()) + 300)

    def write_trust(self, folder: Path) -> None:
        """The public material of a pod."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "jwks.json").write_bytes(self.jwks.canonical())
        (folder / "issuer").write_text(ISSUER + "\n")


class MemorySink(AuditSink):
    """Records in a list; uses one-shots up."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self._used: set[str] = set()
        self.down = False

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:
        if self.down:
            raise e.AuditUnavailableError("test")
        if consume is not None:
            if consume[0] in self._used:
                raise e.ReplayedTokenError("used")
            self._used.add(consume[0])
        self.records.append(record)

    def best_effort(self, record: AuditRecord) -> None:
        self.records.append(record)

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None: ...

    def step_denied(self, record: AuditRecord) -> None:
        self.records.append(record)


class FakeControl(ExecutionControl, StateControl, Fence):
    """Execution and state of one job. A failed rank starts the next attempt while `restarts` lasts."""

    def __init__(self, folder: Path, launch: LaunchSpec, pods: int, restarts: int) -> None:
        self.folder = folder
        self.launch_spec, self._pods, self._restarts = launch, pods, restarts
        self.current: int | None = 1
        self.joined: dict[int, JoinRequest] = {}
        self.beats: list[HeartbeatRequest] = []
        self.ledger: list[CheckpointRef] = []
        self.directive = Directive.CONTINUE
        self.new_attempt = lambda attempt: None
        self.beat_seen = asyncio.Condition()
        self.oplog_heads: dict[str, str] = {}

    def attempt(self, job_uid: str) -> int | None:
        return self.current if job_uid == UID else None

    def revoked(self, jti: str) -> bool:
        return False

    async def launch(self, capability: Capability, request: LaunchRequest) -> Ack:
        raise NotImplementedError

    async def stop(self, capability: Capability, request: StopRequest) -> Ack:
        raise NotImplementedError

    async def reclaim(self, capability: Capability, request: Empty) -> Ack:
        raise NotImplementedError

    async def assess(self, capability: Capability, request: Any) -> Any:
        raise NotImplementedError

    async def join(self, capability: Capability, request: JoinRequest) -> JoinReply:
        self.joined[request.pod_index] = request
        missing = [i for i in range(self._pods) if i not in self.joined]
        if missing:
            return JoinReply(ready=False, waiting_for=f"pods {missing}", attempt=request.attempt)
        first = self.joined[0]
        return JoinReply(
            ready=True,
            attempt=request.attempt,
            launch=self.launch_spec,
            master_host=first.host,
            master_port=first.store_port,
            store_prefix=first.store_prefix,
            restore=self.ledger[-1] if self.ledger else None,
        )

    async def heartbeat(self, capability: Capability, request: HeartbeatRequest) -> HeartbeatReply:
        self.beats.append(request)
        failed = any(rank.exit_code not in (0, None) for rank in request.ranks)
        if failed and self._restarts:
            self._restarts -= 1
            self.advance()
        async with self.beat_seen:
            self.beat_seen.notify_all()
        stored = request.notes.seq if request.notes is not None else None
        return HeartbeatReply(attempt=self.current or 0, directive=self.directive, notes_stored=stored)

    def advance(self) -> None:
        """Begin the next attempt."""
        assert self.current is not None
        self.current += 1
        self.joined.clear()
        self.new_attempt(self.current)

    async def commit_checkpoint(self, capability: Capability, request: CommitRequest) -> CommitReply:
        manifest = request.manifest
        ref = CheckpointRef(
            step=manifest.step, attempt=manifest.attempt, path=request.path, digest=manifest.content_hash()
        )
        self.ledger.append(ref)
        (self.folder / f"committed-{ref.step}").touch()
        self.oplog_heads = dict(manifest.oplogs or {})
        keep = self.launch_spec.checkpoint_keep
        gone, self.ledger = self.ledger[:-keep], self.ledger[-keep:]
        return CommitReply(committed=ref, prune=tuple(old.path for old in gone))

    async def restore_point(self, capability: Capability, request: RestorePointRequest) -> RestorePointReply:
        usable = [ref for ref in self.ledger if ref.digest not in request.damaged]
        if self.ledger and not usable:
            raise e.CheckpointCorruptError("every committed checkpoint is damaged")
        self.ledger = usable
        return RestorePointReply(checkpoint=usable[-1] if usable else None)


class FakeInterface(InterfaceControl):
    """Exchange and feed."""

    def __init__(self, issuer: Issuer, control: FakeControl) -> None:
        self._issuer, self._control = issuer, control

    async def exchange(self, capability: Capability, request: ExchangeRequest) -> ExchangeReply:
        claims = capability.claims
        audience = OPERATIONS[request.op].layer.audience
        return ExchangeReply(token=self._issuer.mint(claims.sub, audience, [request.op], claims.att, one=True))

    async def feed(self, capability: Capability, request: Empty) -> FeedReply:
        return FeedReply(attempt=self._control.current or 0, policy_generation=BUILT_IN.generation)


class Cluster:
    """The gate on a loopback port, and agents as processes. Use as an async context manager.

    `own_forges`: each agent starts its own, as in a pod; its ranks then have its environment for all to see.
    """

    def __init__(self, folder: Path, launch: LaunchSpec, *, restarts: int = 0, own_forges: bool = False) -> None:
        self.folder, self.launch = folder, launch
        self._forge = "" if own_forges else str(shared_forge())
        self.pods = launch.plan.pods
        self.issuer, self.sink = Issuer(), MemorySink()
        self.control = FakeControl(folder, launch, self.pods, restarts)
        self.control.new_attempt = self.write_tokens
        gate = Gate("test", TokenVerifier(KeySet(self.issuer.jwks), ISSUER), self.control, self.sink)
        gate.register(self.control)
        gate.register(FakeInterface(self.issuer, self.control))
        self._gate = gate
        self.agents: list[asyncio.subprocess.Process] = []
        self.issuer.write_trust(folder / "trust")
        self.write_tokens(1)
        self._refusals, self._reachable = 0, asyncio.Event()

    def write_tokens(self, attempt: int) -> None:
        """Mount new tokens, atomically as the kubelet does."""
        for index in range(self.pods):
            target = self.folder / f"t{index}" / "bundle.json"
            target.parent.mkdir(exist_ok=True)
            part = target.with_suffix(".part")
            part.write_bytes(self.issuer.bundle(f"pod-{index}", attempt).canonical())
            part.rename(target)

    async def __aenter__(self) -> "Cluster":
        app = web.Application(client_max_size=8 << 20)
        app.router.add_routes(self.routes())
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    def routes(self) -> list[web.RouteDef]:
        """What the gate serves."""
        return [web.post(CALL_PATH + "{op}", self._handle)]

    async def __aexit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        if self._refusals:
            self._refusals -= 1
            if not self._refusals:
                self._reachable.set()
            return web.Response(status=502)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        envelope = CallEnvelope.model_validate_json(await request.read())
        try:
            answer = await self._gate.call_wire(
                token, request.match_info["op"], envelope.resource, envelope.request, "op"
            )
        except e.KuangchaoError as error:
            status, reply = to_reply(error)
            return web.json_response(reply.wire(), status=status)
        return web.json_response(answer.wire())

    def environment(self, index: int) -> dict[str, str]:
        """Environment of an agent."""
        run = self.folder / f"r{index}"
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("KUANGCHAO_", "COVERAGE"))},
            "PYTHONPATH": ":".join(str(ROOT / part) for part in ("contracts", "worker", ".")),
            "KUANGCHAO_GATE_URL": self.url,
            "KUANGCHAO_POD": f"pod-{index}",
            "KUANGCHAO_POD_INDEX": str(index),
            "KUANGCHAO_INCARNATION": "0",
            "KUANGCHAO_HOST": "127.0.0.1",
            "KUANGCHAO_RUN_DIR": str(run),
            "KUANGCHAO_TOKEN_DIR": str(self.folder / f"t{index}"),
            "KUANGCHAO_TRUST_DIR": str(self.folder / "trust"),
            "KUANGCHAO_CHECKPOINTS": str(self.folder / "checkpoints"),
            "KUANGCHAO_TERMINATION_LOG": str(self.folder / f"termination-{index}"),
            "KUANGCHAO_GRACE_SECONDS": "20",
            "KUANGCHAO_SHARED_FORGE": self._forge,
        }

    async def start_agents(self) -> None:
        """One agent per pod."""
        for index in range(self.pods):
            await self.start_agent(self.environment(index))

    async def start_agent(self, environment: dict[str, str]) -> None:
        """One agent more."""
        with (self.folder / f"agent-{len(self.agents)}.log").open("ab") as log:
            self.agents.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "kuangchao_worker.agent", env=environment, cwd=ROOT, stdout=log, stderr=log
                )
            )

    async def finish(self, seconds: float = PATIENCE) -> list[int]:
        """Exit codes of the agents."""
        return list(await asyncio.wait_for(asyncio.gather(*(agent.wait() for agent in self.agents)), seconds))

    async def beat_with(self, wanted: Any, seconds: float = PATIENCE) -> HeartbeatRequest:
        """The first heartbeat for which `wanted` is true."""
        seen = 0
        async with asyncio.timeout(seconds):
            while True:
                for beat in self.control.beats[seen:]:
                    if wanted(beat):
                        return beat
                seen = len(self.control.beats)
                async with self.control.beat_seen:
                    await self.control.beat_seen.wait()

    async def be_unreachable(self, refusals: int, seconds: float = PATIENCE) -> None:
        """Answer nothing until so many calls have failed."""
        self._refusals = refusals
        async with asyncio.timeout(seconds):
            await self._reachable.wait()

    def logs(self) -> str:
        """What the agents and ranks wrote, for messages."""
        return "\n".join(path.read_text()[-6_000:] for path in sorted(self.folder.glob("agent-*.log")))
