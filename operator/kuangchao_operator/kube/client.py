"""One connection to the API server: JSON in, JSON out, errors as our own types.

Uses the official asyncio client for configuration, credentials and transport, and none of its generated models: they
cost memory and add nothing to objects that we read by a few fields.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from kuangchao_contracts.errors import ConflictError, KuangchaoError, UnavailableError

TIMEOUT_SECONDS: Final = 30.0
PAGE_SIZE: Final = 500
JSON_PATCH: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


class NotFoundError(KuangchaoError):
    """No such object."""


class AlreadyExistsError(ConflictError):
    """An object of this name exists."""


class RefusedError(KuangchaoError):
    """The API server understood the request and says no: not allowed, over quota, or invalid."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)

    @property
    def final(self) -> bool:
        """Whether the same request can never succeed. Rights and quotas change; an invalid object does not."""
        return self.status in (400, 422)


class KubeApi:
    """The API server."""

    def __init__(self, client: Any) -> None:
        """`client` is a kubernetes.aio ApiClient (whose methods bear no types)."""
        self._client = client

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """One call. Raises NotFoundError, ConflictError, RefusedError or UnavailableError."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                call = await self._client.param_serialize(
                    method,
                    path,
                    query_params=list((query or {}).items()),
                    header_params={"Accept": "application/json", "Content-Type": content_type},
                    auth_settings=["BearerToken"],
                )
                method, url, headers, _, _ = call
                reply = await self._client.call_api(method, url, headers, body, None, _request_timeout=TIMEOUT_SECONDS)
                text = await reply.read()
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise UnavailableError(f"API server: {type(error).__name__}: {error}") from error
        answer = _decoded(text)
        if reply.status >= 300:
            raise as_error(reply.status, answer)
        return answer

    async def get(self, path: str) -> dict[str, Any] | None:
        """One object, or None."""
        try:
            return await self.request("GET", path)
        except NotFoundError:
            return None

    async def pages(self, path: str, selector: str = "") -> AsyncIterator[dict[str, Any]]:
        """A collection, page by page, each with the list's metadata."""
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self.request("GET", path, query=query)
            yield page
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token


async def connect() -> KubeApi:
    """The API server of the pod that this runs in, else that of $KUBECONFIG. A pod's token is read again as it ages."""
    configs: Any = kubernetes_config
    configuration = kubernetes_client.Configuration()
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        configs.load_incluster_config(client_configuration=configuration)
    else:
        await configs.load_kube_config(client_configuration=configuration)
    return KubeApi(kubernetes_client.ApiClient(configuration))


def _decoded(text: bytes | str) -> dict[str, Any]:
    try:
        answer = json.loads(text) if text else {}
    except ValueError:
        return {"message": str(text)[:200]}
    return answer if isinstance(answer, dict) else {}


def as_error(status: int, answer: Mapping[str, Any]) -> KuangchaoError:
    """The error of a failed call, from its HTTP status and Status object."""
    message = str(answer.get("message") or answer.get("reason") or status)[:1024]
    if status == 404:
        return NotFoundError(message)
    if status == 409:
        return AlreadyExistsError(message) if answer.get("reason") == "AlreadyExists" else ConflictError(message)
    if status in (400, 403, 422):
        return RefusedError(status, message)
    return UnavailableError(f"API server answered {status}: {message}")
