"""Kubernetes Events, written on transitions only: one Event tells a person one thing."""

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Any

from kuangchao_contracts import names
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.layers.execution.model import Emit


class EventWriter:
    """Writes core/v1 Events. `namespace` is where Events about objects of the cluster go."""

    def __init__(self, api: KubeApi, clock: Callable[[], datetime], namespace: str = "default") -> None:
        self._api, self._clock, self._namespace = api, clock, namespace

    async def emit(self, about: dict[str, Any], event: Emit) -> None:
        """Write an Event about an object given by apiVersion, kind and metadata."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or self._namespace
        stamp = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {"apiVersion": about["apiVersion"], "kind": about["kind"], **metadata},
            "type": event.type,
            "reason": event.reason.value,
            "message": event.message,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
        }
        await self._api.request("POST", paths.collection("Event", namespace), body)
