"""Periodic duties of the operator process. Each survives errors of its own; losing one for good ends the process."""

import asyncio
import base64
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.wire import TOKEN_BUNDLE
from kuangchao_operator.gate.minting import LayerTokens
from kuangchao_operator.kube.writer import Writer

GOVERNANCE_SECRET: Final = "kuangchao-governance-token"
GOVERNANCE_SECONDS: Final = 90.0
ARCHIVE_SECONDS: Final = 3_600.0
RESYNC_SECONDS: Final = 300.0
TRUST_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 5.0
logger = logging.getLogger(__name__)


async def every(seconds: float, what: str, duty: Callable[[], Awaitable[None]], rng: random.Random) -> None:
    """Do a duty now and then for ever, sooner again after a failure. Jitter keeps duties of many operators apart."""
    while True:
        wait = seconds
        try:
            await duty()
        except KuangchaoError as error:
            logger.warning("%s: %s: %s", what, type(error).__name__, error)
            wait = min(seconds, RETRY_SECONDS)
        await asyncio.sleep(wait * (0.8 + 0.2 * rng.random()))


class GovernanceToken:
    """Keeps the lease of the governance process fresh in a Secret of the release's namespace."""

    def __init__(self, writer: Writer, tokens: LayerTokens, namespace: str) -> None:
        self._writer, self._tokens, self._namespace = writer, tokens, namespace

    async def deliver(self) -> None:
        """Mint a new lease and write it."""
        bundle = await self._tokens.audit_bundle()
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": GOVERNANCE_SECRET,
                "namespace": self._namespace,
                "labels": {names.LABEL_MANAGED_BY: names.FIELD_MANAGER},
            },
            "type": "Opaque",
            "data": {TOKEN_BUNDLE: base64.b64encode(bundle.model_dump_json(by_alias=True).encode()).decode()},
        }
        await self._writer.apply(body)
