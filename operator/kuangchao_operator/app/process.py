"""The life of the operator process: what is started in which order, kept while it runs, and stopped at its end.

Order matters at the start: facts before the fence, the fence before the gate, the gate before the first decision.
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Final

import kopf

from kuangchao_contracts.errors import AuditUnavailableError, UnavailableError
from kuangchao_operator.app.background import (
    ARCHIVE_SECONDS,
    GOVERNANCE_SECONDS,
    RESYNC_SECONDS,
    TRUST_SECONDS,
    every,
)
from kuangchao_operator.app.looplag import watch_loop
from kuangchao_operator.app.recovery import settle
from kuangchao_operator.app.settings import Settings, kopf_settings
from kuangchao_operator.app.wiring import PROCESS, Parts, assemble, utc_now
from kuangchao_operator.audit.k8s import KubernetesIntake
from kuangchao_operator.audit.server import IntakeServer, intake_tls
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.gate.policy import PolicyLoop
from kuangchao_operator.kube.client import connect

ISSUER_SECONDS: Final = 60.0
STORE_SECONDS: Final = 5.0
FIRST_LIST_TRIES: Final = 30
FIRST_RESYNC_SECONDS: Final = 10.0
logger = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or until a part is lost for good, which raises."""
    async with AsyncExitStack() as stack:
        api = await connect()
        stack.push_async_callback(api.close)
        parts = assemble(settings, api)
        stack.push_async_callback(parts.issuer.close)
        if await _unless_told_to_end(_start(settings, parts, stack)):
            await _serve(settings, parts, stack)


async def _unless_told_to_end(start: Coroutine[None, None, None]) -> bool:
    """Start, which may wait for long; False if a signal ended the wait. Afterwards kopf takes the signals."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(start)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if task.cancelled():
        logger.info("told to end before the start was over")
        return False
    task.result()
    return True


async def _start(settings: Settings, parts: Parts, stack: AsyncExitStack) -> None:
    await parts.health.start(settings.host, settings.metrics_port)
    stack.push_async_callback(parts.health.stop)
    await parts.issuer.wait_ready(ISSUER_SECONDS)
    await _record(parts.sink)
    parts.revocations.recall()
    stack.push_async_callback(parts.sink.close, parts.checkpointer.finish)
    await _patiently(parts.reader.fill)
    await _patiently(lambda: settle(parts.sink, parts.truth, utc_now))
    await _patiently(lambda: _follow(parts.policy))
    await _patiently(parts.trust.refresh)
    await _patiently(parts.revocations.look)
    await parts.certificate.renew()
    parts.loops.align_fence()
    await parts.gate_server.start(settings.host, settings.gate_port, parts.certificate.context)
    stack.push_async_callback(parts.gate_server.stop)
    if settings.audit_tls_dir is not None:
        await _start_intake(settings, parts, stack)


async def _record(sink: StoreSink) -> None:
    """Begin to record. Until that can be done nothing else begins, so nothing is done, and what is wrong is said.

    Waiting beats ending: it heals as soon as the volume does, and the metric `kuangchao_audit_blocked` can be read.
    """
    told = ""
    while True:
        try:
            return await sink.start()
        except AuditUnavailableError as error:
            if str(error) != told:
                logger.critical("operator does nothing until this is mended: %s: %s", type(error).__name__, error)
            told = str(error)
            await asyncio.sleep(STORE_SECONDS)


async def _patiently(read: Callable[[], Awaitable[None]]) -> None:
    """Do for the first time what needs the API server: it may come up after us."""
    for attempt in range(FIRST_LIST_TRIES):
        try:
            return await read()
        except UnavailableError as error:
            logger.warning("waiting for the API server: %s", error)
            await asyncio.sleep(min(5.0, 0.25 * 2**attempt))
    return await read()


async def _follow(policy: PolicyLoop) -> None:
    """Put the policy in force. A change that cannot be recorded yet is recorded later and holds up no start."""
    try:
        await policy.refresh()
    except AuditUnavailableError as error:
        logger.warning("no audit record of the policy yet: %s", error)


async def _start_intake(settings: Settings, parts: Parts, stack: AsyncExitStack) -> None:
    directory = settings.audit_tls_dir
    assert directory is not None
    context = intake_tls(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    server = IntakeServer(KubernetesIntake(parts.sink, time.time, PROCESS))
    await server.start(settings.host, settings.audit_port, context)
    stack.push_async_callback(server.stop)


async def _serve(settings: Settings, parts: Parts, stack: AsyncExitStack) -> None:
    """kopf watches and takes the signals; everything else runs beside it and ends with it."""
    rng, watching, stopping = random.Random(), asyncio.Event(), asyncio.Event()
    duties = [
        parts.trust.keep(),
        parts.policy.keep(),
        parts.certificate.keep(),
        parts.pools.keep(),
        parts.revocations.keep(),
        parts.checkpointer.keep(),
        every(GOVERNANCE_SECONDS, "governance token", parts.governance.deliver, rng),
        every(TRUST_SECONDS, "trust", parts.publisher.retry, rng),
        every(ARCHIVE_SECONDS, "audit archive", parts.archive.tidy, rng),
        _resync(parts, rng),
        _decide(parts, watching),
        watch_loop(parts.metrics.lagged),
        parts.facts.hearing.keep(),
    ]
    tasks = [asyncio.create_task(duty) for duty in duties]
    stack.push_async_callback(_end, tasks)
    stack.push_async_callback(parts.loops.stop)
    watch = asyncio.create_task(
        kopf.operator(
            registry=parts.registry,
            settings=kopf_settings(settings),
            clusterwide=not settings.job_namespaces,
            namespaces=settings.job_namespaces,
            stop_flag=stopping,
            ready_flag=watching,
        )
    )
    await asyncio.wait([watch, *tasks], return_when=asyncio.FIRST_COMPLETED)
    parts.ready.value = False
    stopping.set()
    await watch
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def _decide(parts: Parts, watching: asyncio.Event) -> None:
    """Start deciding once events flow. Never ends by itself."""
    await watching.wait()
    parts.facts.begin()
    parts.loops.start()
    parts.ready.value = True
    logger.info("operator is ready, %d jobs have a loop", len(parts.loops))
    await asyncio.Event().wait()


async def _resync(parts: Parts, rng: random.Random) -> None:
    """The first list was made before the watches began: look again soon, then now and then."""
    await asyncio.sleep(FIRST_RESYNC_SECONDS)
    await every(RESYNC_SECONDS, "resync", parts.reader.fill, rng)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
