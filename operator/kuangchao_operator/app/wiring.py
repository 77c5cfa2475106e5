"""Composition root: every part of the operator is made here, once, and given what it needs. Decides nothing."""

import asyncio
import ipaddress
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import kopf

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import ConflictError, KuangchaoError
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.policy import PolicyBook
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.app.authority import ExecutionAuthority
from kuangchao_operator.app.background import GovernanceToken
from kuangchao_operator.app.health import HealthServer
from kuangchao_operator.app.metrics import Metrics
from kuangchao_operator.app.settings import Settings
from kuangchao_operator.audit.archive import Archive, Keeping
from kuangchao_operator.audit.checkpoints import Checkpointer
from kuangchao_operator.audit.disk import DiskGuard, Limits
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.stream import RecordStream
from kuangchao_operator.gate.accountdoor import AccountDoor
from kuangchao_operator.gate.accounts import AccountExchange
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.frontdoor import FrontDoor
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.gate.limits import CallLimits, FailureLimits
from kuangchao_operator.gate.minting import LayerTokens
from kuangchao_operator.gate.policy import PolicyLoop
from kuangchao_operator.gate.server import GateServer
from kuangchao_operator.gate.tls import ServingCertificate
from kuangchao_operator.gate.trust import Trust, TrustLoop
from kuangchao_operator.handlers.jobs import JobLoops
from kuangchao_operator.handlers.pools import PoolKeeper
from kuangchao_operator.handlers.watch import WatchClock, register
from kuangchao_operator.kube.anchor import AuditAnchor
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.kube.effects import KubeEffects
from kuangchao_operator.kube.events import EventWriter
from kuangchao_operator.kube.launcher import KubeLauncher
from kuangchao_operator.kube.plans import KubePlans
from kuangchao_operator.kube.policy import PolicyConfigMap
from kuangchao_operator.kube.pools import CachedDescriptors
from kuangchao_operator.kube.reader import Reader
from kuangchao_operator.kube.revocations import RevocationKeeper
from kuangchao_operator.kube.snapshot import KubeFacts
from kuangchao_operator.kube.status import KubeJobStore
from kuangchao_operator.kube.tokenreview import TokenReviews
from kuangchao_operator.kube.trust import TrustPublisher
from kuangchao_operator.kube.truth import KubeTruth
from kuangchao_operator.kube.workerpods import CachedWorkerPods
from kuangchao_operator.kube.writer import Writer
from kuangchao_operator.layers.execution.decide import decide
from kuangchao_operator.layers.execution.pods import PodSettings
from kuangchao_operator.layers.execution.registry import AgentRegistry
from kuangchao_operator.layers.execution.service import ExecutionService
from kuangchao_operator.layers.governance.service import GovernanceService
from kuangchao_operator.layers.resource.service import ResourceService
from kuangchao_operator.layers.state.service import StateService
from kuangchao_operator.layers.strategy.footprint.calibration import parse
from kuangchao_operator.layers.strategy.service import StrategyService
from kuangchao_operator.layers.strategy.shipped import Planner
from kuangchao_operator.shell.actions import Actions
from kuangchao_operator.shell.loop import LoopPorts

PROCESS = "operator"
logger = logging.getLogger(__name__)


def utc_now() -> datetime:
    """The clock of everything that is not a token."""
    return datetime.now(UTC)


def say(line: str) -> None:
    """A line on standard output whatever the log level: who collects logs keeps what the store could lose."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Ready:
    """Whether the operator decides already; asked by the readiness probe."""

    def __init__(self) -> None:
        self.value = False

    def __call__(self) -> bool:
        return self.value


@dataclass(frozen=True, slots=True)
class Parts:
    """The operator's parts, as far as its process must start, keep and stop them."""

    api: KubeApi
    issuer: IssuerClient
    reader: Reader
    truth: KubeTruth
    trust: TrustLoop
    publisher: TrustPublisher
    policy: PolicyLoop
    certificate: ServingCertificate
    sink: StoreSink
    checkpointer: Checkpointer
    archive: Archive
    gate: Gate
    gate_server: GateServer
    facts: KubeFacts
    loops: JobLoops
    pools: PoolKeeper
    governance: GovernanceToken
    revocations: RevocationKeeper
    health: HealthServer
    metrics: Metrics
    registry: kopf.OperatorRegistry
    ready: Ready


def assemble(settings: Settings, api: KubeApi) -> Parts:
    """Make all parts; nothing listens, watches or decides yet."""
    rng, watches, ready = random.Random(), WatchClock(), Ready()
    cache, writer = Cache(), Writer(api)
    issuer = IssuerClient(settings.issuer_socket)
    fence = JobFence()
    policies = PolicyBook()
    tokens = LayerTokens(issuer, fence, time.time, policies)
    publisher = TrustPublisher(writer)
    trust = TrustLoop(issuer, _publishing(settings, publisher, cache), policies=policies)
    sink, archive = audit_parts(settings)
    verifier, calls = TokenVerifier(trust.keys, settings.issuer), CallLimits(time.monotonic)
    gate = Gate(PROCESS, verifier, fence, sink, policies=policies, hasty=calls.hasty)
    store, plans, events = KubeJobStore(api, cache), KubePlans(api), EventWriter(api, utc_now)
    document = PolicyConfigMap(api, events, settings.namespace)
    policy = PolicyLoop(
        issuer,
        policies,
        settings.audit_dir / "policy.json",
        sink,
        PROCESS,
        utc_now,
        trust.refresh,
        document.author,
        document.stale,
    )
    launcher = KubeLauncher(
        writer,
        cache,
        plans,
        tokens,
        publisher,
        _pod_settings(settings, cache),
        lambda: str(time.time_ns()),
        settings.exchange_above_pods,
    )

    def heard(job_uid: str) -> None:
        loops.wake(job_uid)

    agents = AgentRegistry(utc_now, heard)
    effects = KubeEffects(writer, cache, plans, events, launcher)
    facts = KubeFacts(api, cache, store, agents, plans, utc_now, settings.namespace, fence.job_revoked)
    ports = LoopPorts(
        facts=facts,
        effects=effects,
        store=store,
        fence=fence,
        admission=asyncio.Lock(),
        actions=Actions(gate, ExecutionAuthority(tokens), effects),
        decide=decide,
        clock=utc_now,
        rng=rng,
    )
    loops = JobLoops(cache, ports)
    for service in (
        ResourceService(CachedDescriptors(cache)),
        StrategyService(_planner(settings)),
        ExecutionService(store, plans, launcher, agents, sink),
        StateService(store, utc_now),
        GovernanceService(settings.audit_dir, lambda: sink.dropped),
        FrontDoor(issuer, fence, time.time, trust.jwks, policies),
    ):
        gate.register(service)
    governance = GovernanceToken(writer, tokens, settings.namespace)
    revocations = RevocationKeeper(
        api,
        settings.namespace,
        fence,
        trust,
        sink,
        utc_now,
        PROCESS,
        settings.audit_dir / "revocations.json",
        reissue=_reissue(tokens, loops, governance),
        wake=lambda uid: loops.wake(uid, hurry=True),
    )
    accounts = AccountExchange(
        TokenReviews(api), CachedWorkerPods(cache), fence, tokens, sink, utc_now, PROCESS, FailureLimits(time.monotonic)
    )
    registry = kopf.OperatorRegistry()
    register(registry, cache, watches)
    metrics = Metrics(cache, watches, utc_now(), lambda: len(loops))
    metrics.follow_policy(lambda: policies.current.generation, lambda: policy.stale)
    anchor = AuditAnchor(writer, settings.namespace)
    checkpointer = Checkpointer(
        settings.audit_dir, sink, issuer, anchor.publish, say, time.time, anchor.noted, anchor.put_aside
    )
    metrics.follow_checkpoints(lambda: checkpointer.age, lambda: checkpointer.refused)
    metrics.follow_audit(sink, archive)
    return Parts(
        api=api,
        issuer=issuer,
        reader=Reader(api, cache, settings.job_namespaces),
        truth=KubeTruth(api, cache),
        trust=trust,
        publisher=publisher,
        policy=policy,
        certificate=ServingCertificate(issuer, gate_names(settings), gate_addresses(settings), time.time),
        sink=sink,
        checkpointer=checkpointer,
        archive=archive,
        gate=gate,
        gate_server=GateServer(gate, trust.jwks, others=AccountDoor(accounts.exchange).routes(), minted=issuer.minted),
        facts=facts,
        loops=loops,
        pools=PoolKeeper(cache, writer, events, utc_now, rng),
        governance=governance,
        revocations=revocations,
        health=HealthServer(metrics, lambda: ready() and not sink.blocked),
        metrics=metrics,
        registry=registry,
        ready=ready,
    )


def audit_parts(settings: Settings) -> tuple[StoreSink, Archive]:
    """The writer of the audit store, and the duty that keeps the store small."""
    directory = settings.audit_dir
    guard = DiskGuard(directory, Limits(settings.audit_low_disk_percent, settings.audit_full_disk_percent))
    stream = RecordStream(directory, sys.stdout.fileno()) if settings.audit_stream == "stdout" else None
    sink = StoreSink(directory, time.time, PROCESS, guard=guard, stream=stream)
    keeping = Keeping(settings.audit_hot_days, settings.audit_retention_days)
    return sink, Archive(directory, sink, utc_now, keeping, PROCESS)


def _planner(settings: Settings) -> Planner:
    """Raises InvalidInputError for a calibration that is none: better no operator than plans by other figures."""
    path = settings.calibration
    return Planner(None if path is None else parse(path.read_bytes(), str(path)))


def _publishing(settings: Settings, publisher: TrustPublisher, cache: Cache) -> Callable[[Trust], Awaitable[None]]:
    """Publishes trust in the release's namespace and wherever jobs may be running."""

    async def publish(trust: Trust) -> None:
        running = {record.job.metadata.namespace or "" for record in cache.jobs if record.held}
        jwks, policy, audit = (part.canonical().decode() for part in (trust.jwks, trust.policy, trust.audit))
        await publisher.update(trust.ca_pem, jwks, policy, audit, settings.issuer, {settings.namespace, *running})

    return publish


def _reissue(tokens: LayerTokens, loops: JobLoops, governance: GovernanceToken) -> Callable[[], Awaitable[None]]:
    """Has everything minted anew; governance's token comes with its next round should it fail now."""

    async def reissue() -> None:
        tokens.forget_all()
        loops.renew_tokens()
        try:
            await governance.deliver()
        except KuangchaoError as error:
            logger.warning("governance keeps its token for now: %s", error)

    return reissue


def _pod_settings(settings: Settings, cache: Cache) -> Callable[[TrainingJob], PodSettings]:
    def of(job: TrainingJob) -> PodSettings:
        record = cache.pools.get(job.spec.pool)
        if record is None:
            raise ConflictError(f"pool {job.spec.pool} is gone")
        return PodSettings(
            gate_url=settings.gate_url,
            image=settings.worker_image,
            pool=record.pool.spec,
            operation_logs=settings.operation_logs,
            lease_grace_seconds=settings.lease_grace_seconds,
        )

    return of


def gate_names(settings: Settings) -> tuple[str, ...]:
    """DNS names of the gate's certificate: that of the URL, and its longer forms when it is a Service's."""
    host = urlsplit(settings.gate_url).hostname or ""
    if _is_address(host):
        return ()
    return (host, f"{host}.cluster.local") if host.endswith(".svc") else (host,)


def gate_addresses(settings: Settings) -> tuple[str, ...]:
    """IP addresses of the gate's certificate."""
    host = urlsplit(settings.gate_url).hostname or ""
    return (host,) if _is_address(host) else ()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
