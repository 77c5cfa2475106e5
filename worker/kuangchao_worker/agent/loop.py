"""The life of an agent: wait for tokens, join, run the attempt, and again for the next one until the pod may end."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine, Mapping
from typing import Final

from kuangchao_contracts.claims import Claims
from kuangchao_contracts.errors import (
    AuditUnavailableError,
    CapabilityError,
    ConflictError,
    KuangchaoError,
    UnavailableError,
)
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.run import DRAINED_EXIT, JoinReply, JoinRequest
from kuangchao_worker.agent import termination
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.agent.exchange import TokenPuller
from kuangchao_worker.agent.forge import Forge, ForgedStore
from kuangchao_worker.agent.notes import NoteQueue
from kuangchao_worker.agent.session import Exit, Rejoin, Session
from kuangchao_worker.agent.settings import Settings
from kuangchao_worker.agent.vigil import Vigil
from kuangchao_worker.pod.defaults import RANK_DEFAULTS
from kuangchao_worker.pod.store import AttemptStore, open_store
from kuangchao_worker.pod.tokens import TokenFile

TOKEN_SECONDS: Final = 300.0
FIRST_JOIN_PAUSE: Final = 0.2
LONGEST_JOIN_PAUSE: Final = 2.0
STORE_DEFAULTS: Final = {
    # torch's store asks DNS for the names of its clients and answers nobody meanwhile: by default 5 s for each try
    "RES_OPTIONS": "timeout:1 attempts:1",
}
log = logging.getLogger("kuangchao.agent")


class Agent:
    """One per pod."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, environment
        self._tokens = TokenFile(settings.token_directory)
        self._client = GateClient(
            settings.gate_url, self._tokens, settings.trust_directory / "ca.crt", on_refused=self._hurry
        )
        self._puller = (
            TokenPuller(settings.account_token, self._client, self._tokens) if settings.account_token else None
        )
        self._vigil = Vigil(self._client, self._tokens, settings.run_directory, self._hurry)
        self._forge: Forge | None = None
        self._session: Session | None = None
        self._notes = NoteQueue()
        self._main: asyncio.Task[int] | None = None

    async def run(self) -> int:
        """Run until the pod may end; its exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        self._settings.run_directory.mkdir(parents=True, exist_ok=True)
        async with self._client:
            duties = [asyncio.create_task(duty, name="authority") for duty in self._duties()]
            for duty in duties:
                duty.add_done_callback(_say_why)
            self._main = asyncio.ensure_future(self._attempts())
            try:
                return await self._main
            except asyncio.CancelledError:
                return DRAINED_EXIT
            finally:
                for duty in duties:
                    duty.cancel()
                await asyncio.gather(*duties, return_exceptions=True)
                if self._forge is not None:
                    self._forge.close()

    def _duties(self) -> list[Coroutine[None, None, None]]:
        return [self._vigil.keep(), *([self._puller.keep()] if self._puller is not None else [])]

    def _hurry(self) -> None:
        """What we hold was refused or taken back, or is for an attempt that is over."""
        if self._puller is not None:
            self._puller.hurry()

    def _on_sigterm(self) -> None:
        log.info("asked to end")
        if self._session is not None:
            self._session.drain()
        elif self._main is not None:
            self._main.cancel()

    async def _attempts(self) -> int:
        attempt = 1
        while True:
            try:
                await self._tokens.wait_for_attempt(attempt, TOKEN_SECONDS)
                end = await self._attempt()
            except KuangchaoError as error:
                log.error("cannot join: %s", error)  # noqa: TRY400 - the message says it all
                return 1
            if isinstance(end, Exit):
                return end.code
            attempt = end.attempt
            self._hurry()

    async def _attempt(self) -> Rejoin | Exit:
        attempt, identity = self._tokens.read().attempt, self._tokens.identity()
        forge = self._living_forge()
        store = await self._open_store(forge, attempt) if self._settings.pod_index == 0 else None
        try:
            join = self._join_request(attempt, store)
            reply = await self._join(join, identity)
            if not isinstance(reply, JoinReply):
                return reply
            return await self._run(join, reply, forge)
        finally:
            if store is not None:
                store.close()

    def _living_forge(self) -> Forge:
        """The forge, made anew if it has died."""
        if self._forge is None or not self._forge.alive:
            if self._forge is not None:
                self._forge.close()
            self._forge = Forge({**RANK_DEFAULTS, **self._environment}, self._settings.shared_forge)
        return self._forge

    async def _open_store(self, forge: Forge, attempt: int) -> ForgedStore | AttemptStore:
        try:
            return await forge.store(attempt, {**RANK_DEFAULTS, **STORE_DEFAULTS, **self._environment})
        except UnavailableError as error:
            log.warning("the store is served by the agent itself: %s", error)
            return await asyncio.to_thread(open_store, attempt)

    async def _run(self, join: JoinRequest, reply: JoinReply, forge: Forge) -> Rejoin | Exit:
        if reply.launch is None:
            raise UnavailableError("the gate said ready but sent no launch specification")
        self._session = Session(
            self._settings,
            self._client,
            join,
            reply,
            reply.launch,
            self._environment,
            forge,
            self._notes,
            self._vigil,
        )
        try:
            end = await self._session.run()
            if isinstance(end, Exit):
                termination.write(self._settings.termination_log, self._session.reports())
            return end
        finally:
            self._session = None

    def _join_request(self, attempt: int, store: ForgedStore | AttemptStore | None) -> JoinRequest:
        settings = self._settings
        return JoinRequest(
            attempt=attempt,
            incarnation=settings.incarnation,
            pod_index=settings.pod_index,
            pod=settings.pod,
            host=settings.host,
            store_port=store.port if store else 0,
            store_prefix=store.prefix if store else "",
            pod_uid=settings.pod_uid,
        )

    async def _join(self, join: JoinRequest, identity: Claims) -> JoinReply | Rejoin | Exit:
        """Present ourselves until the gang is complete. There is no limit here: the operator has one."""
        resource, pause = job_resource(identity.ns, identity.job), FIRST_JOIN_PAUSE
        while True:
            try:
                reply = await self._client.call("execution.join", resource, join, JoinReply)
                if reply.ready:
                    return reply
                log.info("waiting for %s", reply.waiting_for)
            except (CapabilityError, ConflictError) as error:
                # over, gone, or not recorded yet: the feed knows which
                log.info("join: %s", error)
                turn = await self._refused(resource, join.attempt)
                if turn is not None:
                    return turn
            except (UnavailableError, AuditUnavailableError) as error:
                log.info("join: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_JOIN_PAUSE)

    async def _refused(self, resource: str, attempt: int) -> Rejoin | Exit | None:
        feed = await self._vigil.feed(resource)
        if feed is None:
            return None
        if feed.attempt == 0:
            return Exit(DRAINED_EXIT)
        return Rejoin(feed.attempt) if feed.attempt > attempt else None


def _say_why(duty: asyncio.Task[None]) -> None:
    """A duty that ends by itself is a fault of ours, which must not stay silent."""
    if not duty.cancelled() and duty.exception() is not None:
        log.error("a duty of the agent broke", exc_info=duty.exception())


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What ranks inherit. The agent's own settings are not theirs."""
    own = (
        "KUANGCHAO_GATE_URL",
        "KUANGCHAO_TOKEN_DIR",
        "KUANGCHAO_TRUST_DIR",
        "KUANGCHAO_TERMINATION_LOG",
        "KUANGCHAO_ACCOUNT_TOKEN",
        "KUANGCHAO_SHARED_FORGE",
    )
    return {name: value for name, value in environment.items() if name not in own}


async def run_agent() -> int:
    """The agent of this process."""
    return await Agent(Settings.from_environment(os.environ), rank_environment(os.environ)).run()
