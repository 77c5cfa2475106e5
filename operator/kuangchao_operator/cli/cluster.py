"""The cluster as the commands reach it: with the user's own kubeconfig and rights, every call with a timeout."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from kuangchao_contracts.api import ParallelPlanObject, ResourceDescriptorObject, ResourcePool, TrainingJob
from kuangchao_contracts.api.meta import CustomObject
from kuangchao_contracts.errors import (
    ConflictError,
    InvalidInputError,
    KuangchaoError,
    PermissionDeniedError,
    RelayedInputError,
    UnavailableError,
)
from kuangchao_contracts.names import GROUP, VERSION

TIMEOUT_SECONDS = 20
FIELD_MANAGER = "kuangchao"
MERGE_PATCH = "application/merge-patch+json"


class NotFoundError(KuangchaoError):
    """The API server has no such object."""


class Cluster:
    """A connection made from a kubeconfig (or the pod's own account), with typed reads of our kinds."""

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        try:
            self.api, own = _connect(context)
            self.api.user_agent = FIELD_MANAGER  # the API server names the writer of a field by it
        except (config.ConfigException, OSError) as error:
            raise UnavailableError(
                f"no usable kubeconfig ({str(error).rstrip('.')}); set KUBECONFIG or --context"
            ) from None
        self.namespace = namespace or own

    def jobs(self, namespace: str | None) -> list[TrainingJob]:
        """TrainingJobs of a namespace, or of all when None."""
        return [TrainingJob.model_validate(item) for item in self._list(TrainingJob, namespace)]

    def job(self, name: str) -> TrainingJob:
        """One TrainingJob. Raises NotFoundError."""
        return TrainingJob.model_validate(self.request("GET", self._path(TrainingJob, self.namespace, name)))

    def pools(self) -> list[ResourcePool]:
        """All pools."""
        return [ResourcePool.model_validate(item) for item in self._list(ResourcePool, None)]

    def descriptors(self) -> list[ResourceDescriptorObject]:
        """All descriptors."""
        return [ResourceDescriptorObject.model_validate(i) for i in self._list(ResourceDescriptorObject, None)]

    def plan(self, name: str) -> ParallelPlanObject:
        """The recorded plan of a job. Raises NotFoundError."""
        return ParallelPlanObject.model_validate(
            self.request("GET", self._path(ParallelPlanObject, self.namespace, name))
        )

    def patch_job(self, name: str, spec: Mapping[str, Any], resource_version: str | None = None) -> TrainingJob:
        """Change fields of a job's spec. Raises ConflictError when a given resourceVersion is no longer the newest."""
        body: dict[str, Any] = {"spec": dict(spec)}
        if resource_version is not None:
            body["metadata"] = {"resourceVersion": resource_version}
        path = self._path(TrainingJob, self.namespace, name)
        return TrainingJob.model_validate(self.request("PATCH", path, body))

    def delete_job(self, name: str) -> None:
        """Ask for a job's deletion. Raises NotFoundError."""
        self.request("DELETE", self._path(TrainingJob, self.namespace, name))

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """One call to the API server; the decoded JSON answer. Raises the KuangchaoError that fits a refusal."""
        with translated(path):
            reply = self._send(method, path, body, query, TIMEOUT_SECONDS)
            return json.loads(reply.read())

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], idle_seconds: float | None) -> Iterator[Iterator[bytes]]:
        """Chunks of an answer as they come; `idle_seconds` None waits for the next one without end."""
        with translated(path):
            reply = self._send("GET", path, None, query, (TIMEOUT_SECONDS, idle_seconds)).response
            try:
                yield reply.stream(65_536)
            finally:
                reply.close()

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None, timeout: Any
    ) -> Any:
        headers = {"Accept": "application/json, */*"} | ({"Content-Type": MERGE_PATCH} if method == "PATCH" else {})
        call = self.api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        reply = self.api.call_api(*call, _request_timeout=timeout)
        if not 200 <= reply.status <= 299:
            refusal = reply.read()  # type: ignore[no-untyped-call]  # the package is annotated in part
            raise ApiException(status=reply.status, reason=reply.reason, body=refusal)
        return reply

    def _list(self, kind: type[CustomObject], namespace: str | None) -> Iterator[Any]:
        return self.items(self._path(kind, namespace))

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Any]:
        """The objects of a collection, page by page."""
        query = {"limit": "500", **(query or {})}
        while True:
            page = self.request("GET", path, query=query)
            yield from page["items"]
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]

    @staticmethod
    def _path(kind: type[CustomObject], namespace: str | None, name: str | None = None) -> str:
        scope = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
        return f"/apis/{GROUP}/{VERSION}{scope}/{kind.plural}" + (f"/{name}" if name else "")


def _connect(context: str | None) -> tuple[client.ApiClient, str]:
    """API client and the namespace that the kubeconfig names."""
    try:
        contexts, active = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]  # the package is annotated in part
    except config.ConfigException:
        if context is not None:
            raise
        config.load_incluster_config()  # type: ignore[no-untyped-call]  # the package is annotated in part
        return client.ApiClient(), "default"
    chosen = active if context is None else next((c for c in contexts if c["name"] == context), None)
    if chosen is None:
        names = [c["name"] for c in contexts]
        raise InvalidInputError("--context", context, "is not in the kubeconfig", ", ".join(names) or None)
    connection = config.new_client_from_config(context=context)  # type: ignore[no-untyped-call]  # the package is annotated in part
    return connection, chosen["context"].get("namespace", "default")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """API refusals and transport errors as our own errors."""
    try:
        yield
    except ApiException as error:
        raise _to_error(error, what) from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise UnavailableError(f"the API server did not answer {what}: {error}") from None


def _to_error(error: Any, what: str) -> KuangchaoError:
    message = _message(error) or f"{what}: {error.status} {error.reason}"
    if error.status == 404:
        return NotFoundError(message)
    if error.status in (400, 422):
        return RelayedInputError(what, error.status, message)
    if error.status in (401, 403):
        return PermissionDeniedError(message)
    return ConflictError(message) if error.status == 409 else UnavailableError(message)


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return ""
