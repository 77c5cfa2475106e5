"""HTTP to a pod's loopback port through the API server's port-forward, with the user's own rights. Opens no local port.

Whoever may forward to a pod may read what it serves on loopback: that permission is the whole access control.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from kuangchao_contracts.errors import PermissionDeniedError, UnavailableError
from kuangchao_operator.cli.cluster import TIMEOUT_SECONDS, Cluster, translated

NEEDED = "verbs get and create on pods/portforward"


def ready_pod(cluster: Cluster, namespace: str, labels: Mapping[str, str]) -> str:
    """Name of a pod that has these labels and is Ready. Raises UnavailableError when there is none."""
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    pods = list(cluster.items(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods", {"labelSelector": selector}))
    for pod in pods:
        if _ready(pod):
            return str(pod["metadata"]["name"])
    raise UnavailableError(f"none of {len(pods)} pods with {selector} in namespace {namespace} is Ready")


@contextmanager
def pod_port(cluster: Cluster, namespace: str, pod: str, port: int) -> Iterator[PodPort]:
    """A connection to a port of a pod. Raises PermissionDeniedError, UnavailableError."""
    core = client.CoreV1Api(cluster.api)
    call = core.connect_get_namespaced_pod_portforward
    forward = within(TIMEOUT_SECONDS, lambda: _open(call, namespace, pod, port))
    connection = PodPort(forward, pod, port)
    try:
        yield connection
    finally:
        forward.close()


class PodPort:
    """One HTTP connection over one forward."""

    def __init__(self, forward: Any, pod: str, port: int) -> None:
        self._forward, self._pod, self._port = forward, pod, port
        self._http = http.client.HTTPConnection("localhost", port)
        self._http.auto_open = 0  # else a lost forward would be replaced by a connection to this machine's own port
        self._http.sock = forward.socket(port)
        self._http.sock.settimeout(TIMEOUT_SECONDS)

    def get(self, path: str, query: Mapping[str, str]) -> Any:
        """The decoded JSON answer. Raises the KuangchaoError that fits a refusal."""
        with translated(path):
            status, reason, body = self._get(f"{path}?{urlencode(query)}")
            if status != 200:
                raise ApiException(status=status, reason=reason, body=body.decode(errors="replace"))
            return json.loads(body)

    def _get(self, target: str) -> tuple[int, str, bytes]:
        try:
            self._http.request("GET", target, headers={"Accept": "application/json"})
            reply = self._http.getresponse()
            return reply.status, reply.reason, reply.read()
        except (http.client.HTTPException, OSError) as error:
            cause = self._forward.error(self._port) or f"{type(error).__name__}: {error}"
            raise UnavailableError(f"pod {self._pod} does not answer on its port {self._port}: {cause}") from None


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of a call that has no timeout of its own. Raises UnavailableError when it takes longer."""
    results: list[Any] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001  # raised again below, in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, name="port-forward", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise UnavailableError(f"no port-forward after {seconds:g} s")
    return results[0]


def _open(call: Any, namespace: str, pod: str, port: int) -> Any:
    try:
        return portforward(call, pod, namespace, ports=str(port))
    except ApiException as error:
        # The package keeps the status of a refused WebSocket only in the exception that it was handling.
        status = getattr(error.__context__, "status_code", 0)
        if status in (401, 403):
            raise PermissionDeniedError(f"port-forward to pod {namespace}/{pod} needs the {NEEDED}") from None
        raise UnavailableError(f"no port-forward to pod {namespace}/{pod}: {_first_line(error.reason)}") from None


def _first_line(reason: object) -> str:
    return str(reason).split(" -+-+- ", maxsplit=1)[0]


def _ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
