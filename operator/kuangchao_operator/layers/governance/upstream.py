"""The governance process's way to the operator's gate, under its mounted lease. Holds nothing between calls."""

import ssl
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditPage, AuditQuery
from kuangchao_contracts.auditproof import ProveReply, ProveRequest, VerifyReport, VerifyRequest
from kuangchao_contracts.base import Contract
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.resources import CLUSTER
from kuangchao_contracts.wire import CALL_PATH, CallEnvelope, ErrorReply, TokenBundle, to_error

TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)
RESOURCE: Final = f"{CLUSTER}/audit/records"
T = TypeVar("T", bound=Contract)


class Upstream:
    """Asks the gate. Token and CA are read at each call: both are replaced while we run."""

    def __init__(self, url: str, bundle: Path, ca: Path) -> None:
        self._url, self._bundle, self._ca = url.rstrip("/"), bundle, ca

    async def query(self, wanted: AuditQuery) -> AuditPage:
        """A page of records. Raises UnavailableError, or what the gate answered."""
        return await self._ask("governance.query", wanted, AuditPage)

    async def verify(self, wanted: VerifyRequest) -> VerifyReport:
        """Part of a verification. Raises as `query`."""
        return await self._ask("governance.verify", wanted, VerifyReport)

    async def prove(self, wanted: ProveRequest) -> ProveReply:
        """Proofs. Raises as `query`."""
        return await self._ask("governance.prove", wanted, ProveReply)

    async def _ask(self, op: str, wanted: Contract, answer: type[T]) -> T:
        body = CallEnvelope(resource=RESOURCE, request=wanted.wire()).wire()
        try:
            headers = {"Authorization": f"Bearer {self._token()}"}
            connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=self._ca))
            async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session:
                url = f"{self._url}{CALL_PATH}{op}"
                async with session.post(url, json=body, headers=headers) as response:
                    return _reply(response.status, await response.json(), answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise e.UnavailableError(f"the gate does not answer: {type(error).__name__}") from None

    def _token(self) -> str:
        bundle = TokenBundle.model_validate_json(self._bundle.read_bytes())
        return bundle.token(Layer.GOVERNANCE.value, Layer.GOVERNANCE.audience)


def _reply(status: int, body: Any, answer: type[T]) -> T:
    try:
        if status != 200:
            raise to_error(status, ErrorReply.from_reply(body))
        return answer.from_reply(body)
    except ValidationError:
        raise e.UnavailableError(f"the gate answered {status} with something else than {answer.__name__}") from None
