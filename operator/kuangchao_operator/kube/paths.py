"""URL paths of the API server's resources that the operator touches."""

from typing import Any, Final

from kuangchao_contracts import names

_CUSTOM: Final = f"/apis/{names.GROUP}/{names.VERSION}"
_KINDS: Final = {
    "Pod": "pods",
    "Service": "services",
    "Secret": "secrets",
    "ConfigMap": "configmaps",
    "Event": "events",
    "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "TrainingJob": "trainingjobs",
    "ParallelPlan": "parallelplans",
    "ResourcePool": "resourcepools",
    "ResourceDescriptor": "resourcedescriptors",
}


def collection(kind: str, namespace: str | None = None) -> str:
    """Path of all objects of a kind, in one namespace or everywhere."""
    root = _CUSTOM if kind in ("TrainingJob", "ParallelPlan", "ResourcePool", "ResourceDescriptor") else "/api/v1"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{_KINDS[kind]}"


def item(kind: str, name: str, namespace: str | None = None, subresource: str = "") -> str:
    """Path of one object or of a subresource of it."""
    return f"{collection(kind, namespace)}/{name}" + (f"/{subresource}" if subresource else "")


def of(body: dict[str, Any]) -> str:
    """Path of the object that a manifest describes."""
    return item(body["kind"], body["metadata"]["name"], body["metadata"].get("namespace"))
