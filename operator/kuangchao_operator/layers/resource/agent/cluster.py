"""The few things that the node agent does at the API server, under its own account: reads its node, the pods there and
the pools; creates and deletes descriptors of its own node. It updates nothing."""

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Final

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException
from pydantic import ValidationError

from kuangchao_contracts.api import ResourceDescriptorObject, ResourcePool
from kuangchao_contracts.api.resourcedescriptor import ResourceDescriptorSpec
from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import HostCapacity, NodeDescriptor
from kuangchao_contracts.errors import ConflictError, UnavailableError
from kuangchao_contracts.names import GROUP, LABEL_NODE, VERSION
from kuangchao_contracts.units import milli, to_bytes
from kuangchao_operator.layers.resource.health import strictest
from kuangchao_operator.layers.resource.others import requests_of_others

REQUEST_SECONDS: Final = 10
PAGE: Final = 500


class Cluster(ABC):
    """What the agent's loop needs of the cluster. All methods raise UnavailableError when the API server fails them."""

    @abstractmethod
    async def host(self, node: str) -> tuple[HostCapacity, dict[str, str]]:
        """What the kubelet offers, what others ask for there, and the node's labels."""

    @abstractmethod
    async def limits(self, labels: dict[str, str]) -> HealthThresholds:
        """The strictest limits of the pools that select a node with these labels."""

    @abstractmethod
    async def descriptors(self, node: str) -> tuple[NodeDescriptor, ...]:
        """Published descriptors of the node, of any generation."""

    @abstractmethod
    async def publish(self, descriptor: NodeDescriptor) -> None:
        """Create the descriptor's object. Raises ConflictError when that generation exists already."""

    @abstractmethod
    async def collect(self, node: str, generation: int) -> None:
        """Delete the object of an old generation; that it is gone already is success."""


def object_name(node: str, generation: int) -> str:
    """Name of a descriptor's object."""
    return f"{node}-{generation}"


def node_label(node: str) -> str:
    """The node's name as a label value; a name too long for one is replaced by its digest."""
    return node if len(node) <= 63 else hashlib.sha256(node.encode()).hexdigest()[:63]


def selected(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Whether a pool's nodeSelector selects a node."""
    return all(labels.get(key) == value for key, value in selector.items())


class KubernetesCluster(Cluster):
    """Over the official client; answers are read as plain JSON, so that a newer server's fields do no harm."""

    def __init__(self, api: Any) -> None:
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)

    async def host(self, node: str) -> tuple[HostCapacity, dict[str, str]]:
        """See Cluster. Pods are read from the server's cache: the agent asks every few seconds."""
        found = await _json(self._core.read_node_without_preload_content(node, _request_timeout=REQUEST_SECONDS))
        pods = await _json(
            self._core.list_pod_for_all_namespaces_without_preload_content(
                field_selector=f"spec.nodeName={node}", resource_version="0", _request_timeout=REQUEST_SECONDS
            )
        )
        cpu, memory = requests_of_others(pods.get("items") or ())
        allocatable = found.get("status", {}).get("allocatable") or {}
        capacity = HostCapacity(
            allocatable_milli_cpu=milli(allocatable.get("cpu", 0)),
            allocatable_memory_bytes=to_bytes(allocatable.get("memory", 0)),
            others_milli_cpu=cpu,
            others_memory_bytes=memory,
        )
        return capacity, found.get("metadata", {}).get("labels") or {}

    async def limits(self, labels: dict[str, str]) -> HealthThresholds:
        """See Cluster. A pool that this version cannot read has no say."""
        pools = [pool for item in await self._list(ResourcePool.plural) if (pool := _pool(item)) is not None]
        return strictest(pool.spec.health for pool in pools if selected(pool.spec.node_selector, labels))

    async def descriptors(self, node: str) -> tuple[NodeDescriptor, ...]:
        """See Cluster."""
        items = await self._list(ResourceDescriptorObject.plural, label_selector=f"{LABEL_NODE}={node_label(node)}")
        return tuple(ResourceDescriptorObject.model_validate(_known(item)).spec for item in items)

    async def publish(self, descriptor: NodeDescriptor) -> None:
        """See Cluster."""
        body = ResourceDescriptorObject(spec=ResourceDescriptorSpec.model_validate(descriptor.wire())).wire()
        body["metadata"] = {
            "name": object_name(descriptor.node, descriptor.generation),
            "labels": {LABEL_NODE: node_label(descriptor.node)},
        }
        await _json(
            self._custom.create_cluster_custom_object_without_preload_content(
                GROUP, VERSION, ResourceDescriptorObject.plural, body, _request_timeout=REQUEST_SECONDS
            )
        )

    async def collect(self, node: str, generation: int) -> None:
        """See Cluster."""
        await _json(
            self._custom.delete_cluster_custom_object_without_preload_content(
                GROUP,
                VERSION,
                ResourceDescriptorObject.plural,
                object_name(node, generation),
                _request_timeout=REQUEST_SECONDS,
            ),
            gone_is_fine=True,
        )

    async def _list(self, plural: str, label_selector: str | None = None) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            page = await _json(
                self._custom.list_cluster_custom_object_without_preload_content(
                    GROUP,
                    VERSION,
                    plural,
                    limit=PAGE,
                    label_selector=label_selector,
                    _continue=token,
                    _request_timeout=REQUEST_SECONDS,
                )
            )
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue") or None
            if token is None:
                return items


def _known(item: dict[str, Any]) -> dict[str, Any]:
    return {key: item[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in item}


def _pool(item: dict[str, Any]) -> ResourcePool | None:
    try:
        return ResourcePool.model_validate(_known(item))
    except ValidationError:
        return None


async def _json(call: Any, *, gone_is_fine: bool = False) -> dict[str, Any]:
    """Body of an answer. Raises ConflictError for 409, UnavailableError for everything else that is not success."""
    try:
        response = await call
        status, body = response.status, await response.read()
    except (ApiException, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnavailableError(f"API server: {type(error).__name__}") from error
    if status == 409:
        raise ConflictError("the object exists already")
    if status == 404 and gone_is_fine:
        return {}
    if not 200 <= status < 300:
        raise UnavailableError(f"API server: {status} {_message(body)}")
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message", ""))[:256]
    except (ValueError, AttributeError):
        return ""
