"""The issuer's unix socket: mint, keys, CA, certificates, policy, checkpoints. Whoever may open it is the operator.

Tokens leave in answers only, never in logs; a refusal says which class of fault it is, since only we are asking.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import Final, TypeVar

from aiohttp import web
from pydantic import ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.minting import (
    CA_PATH,
    CERTIFICATE_PATH,
    DENY_PATH,
    JWKS_PATH,
    MINT_PATH,
    POLICY_PATH,
    CaBundle,
    CertificateRequest,
    DenyRequest,
    MintBatch,
    MintReply,
)
from kuangchao_contracts.notes import AUDIT_KEYS_PATH, CHECKPOINT_PATH, CheckpointReply, CheckpointRequest
from kuangchao_contracts.wire import ErrorReply
from kuangchao_operator.signing.ca import CertificateAuthority
from kuangchao_operator.signing.keystore import KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PolicyKeeper
from kuangchao_operator.signing.witness import Witness

log = logging.getLogger(__name__)
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
TICK_SECONDS: Final = 10.0
T = TypeVar("T", bound=Contract)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class IssuerServer:
    """Serves one issuer on one socket."""

    def __init__(
        self, keys: KeyStore, ca: CertificateAuthority, minter: Minter, policies: PolicyKeeper, witness: Witness
    ) -> None:
        self._keys, self._ca, self._minter, self._policies, self._witness = keys, ca, minter, policies, witness

    def app(self) -> web.Application:
        """The application, without a socket."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
        app.router.add_post(MINT_PATH, self._mint)
        app.router.add_get(JWKS_PATH, self._jwks)
        app.router.add_post(DENY_PATH, self._deny)
        app.router.add_get(CA_PATH, self._bundle)
        app.router.add_post(CERTIFICATE_PATH, self._certificate)
        app.router.add_get(POLICY_PATH, self._policy)
        app.router.add_get(AUDIT_KEYS_PATH, self._audit_keys)
        app.router.add_get(CHECKPOINT_PATH + "/{day}", self._last_checkpoint)
        app.router.add_post(CHECKPOINT_PATH, self._checkpoint)
        return app

    async def serve(self, socket: Path, stop: asyncio.Event) -> None:
        """Serve until `stop`, rotating keys meanwhile."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=5.0)
        await runner.setup()
        try:
            await _listen(runner, socket)
            log.info("issuer listens, signing with key %s", self._keys.signing_key()[0])
            await self._rotate(stop)
        finally:
            await runner.cleanup()
            _clear(socket)

    async def _rotate(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), TICK_SECONDS)
            except TimeoutError:
                self._tick()
                await asyncio.to_thread(self._policies.tick)

    def _tick(self) -> None:
        try:
            if self._keys.tick():
                log.info("key set changed, signing with key %s", self._keys.signing_key()[0])
            if self._ca.tick():
                log.info("CA bundle changed")
        except OSError as error:  # the old keys stay good: try again at the next tick
            log.warning("cannot rotate: %s", error.strerror)

    async def _mint(self, request: web.Request) -> web.Response:
        batch = await _body(request, MintBatch)
        reply = MintReply(tokens=tuple(self._minter.mint(wanted) for wanted in batch.requests))
        return web.json_response(reply.wire())

    async def _jwks(self, _: web.Request) -> web.Response:
        return web.json_response(self._keys.jwks().wire())

    async def _deny(self, request: web.Request) -> web.Response:
        kid = (await _body(request, DenyRequest)).kid
        if self._keys.deny(kid):
            log.warning("key %s is denied, signing with key %s", kid, self._keys.signing_key()[0])
        return web.json_response(self._keys.jwks().wire())

    async def _policy(self, _: web.Request) -> web.Response:
        return web.json_response(self._policies.reply().wire())

    async def _audit_keys(self, _: web.Request) -> web.Response:
        return web.json_response(self._witness.keys.wire())

    async def _last_checkpoint(self, request: web.Request) -> web.Response:
        try:
            day = date.fromisoformat(request.match_info["day"])
        except ValueError:
            raise InvalidInputError("day", "(not shown)", "is not a date") from None
        return web.json_response(CheckpointReply(note=self._witness.last(day)).wire())

    async def _checkpoint(self, request: web.Request) -> web.Response:
        note = self._witness.sign(await _body(request, CheckpointRequest))
        return web.json_response(CheckpointReply(note=note).wire())

    async def _bundle(self, _: web.Request) -> web.Response:
        return web.json_response(CaBundle(pem=self._ca.bundle()).wire())

    async def _certificate(self, request: web.Request) -> web.Response:
        return web.json_response(self._ca.sign(await _body(request, CertificateRequest)).wire())


async def _body(request: web.Request, model: type[T]) -> T:
    try:
        return model.model_validate_json(await request.read())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise InvalidInputError(where, "(not shown)", first["type"].replace("_", " ")) from None


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except KuangchaoError as error:
        return web.json_response(ErrorReply(error=error.code, message=str(error)[:1024]).wire(), status=400)


async def _listen(runner: web.AppRunner, socket: Path) -> None:
    _clear(socket)
    before = os.umask(0o117)
    try:
        await web.UnixSite(runner, socket).start()
    finally:
        os.umask(before)


def _clear(socket: Path) -> None:
    """Remove the socket, also one that was left by a process that was killed."""
    if socket.is_socket():
        socket.unlink()
