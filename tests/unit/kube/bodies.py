"""Bodies of Kubernetes objects as an API server would send them."""

from typing import Any

from kuangchao_contracts import names

Body = dict[str, Any]
UID = "11111111-2222-3333-4444-555555555555"


def pod(
    name: str = "j-abcdef-0-0", index: int = 0, incarnation: int = 0, version: int = 1, owner: str = UID, **status: Any
) -> Body:
    """A pod of a job with this status."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": f"pod-{name}", "resourceVersion": str(version),
            "labels": {
                names.LABEL_JOB: "j", names.LABEL_JOB_UID: UID, names.LABEL_POD_INDEX: str(index),
                names.LABEL_INCARNATION: str(incarnation), names.LABEL_ATTEMPT: "1",
            },
            "ownerReferences": [{"kind": "TrainingJob", "name": "j", "uid": owner, "controller": True}],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "train"}, {"name": "side-car"}]},
        "status": {"phase": "Running", **status},
    }  # fmt: skip


def job(name: str = "j", version: int = 1, pool: str = "p", uid: str = UID, **more: Any) -> Body:
    """A TrainingJob."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "TrainingJob",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", **more.pop("metadata", {}),
        },
        "spec": {"pool": pool, "task": "m:f", "devices": {"count": 2}, **more.pop("spec", {})},
        **more,
    }  # fmt: skip


def node(name: str = "node-1", version: int = 1, ready: str = "True", **labels: str) -> Body:
    """A node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "resourceVersion": str(version), "labels": labels},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    }


def pool(name: str = "p", version: int = 1, **spec: Any) -> Body:
    """A ResourcePool of CPU devices."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ResourcePool",
        "metadata": {"name": name, "uid": f"pool-{name}", "resourceVersion": str(version), "generation": 1},
        "spec": spec,
    }


def descriptor(name: str = "node-1", generation: int = 1, version: int = 1, cpus: int = 4) -> Body:
    """A ResourceDescriptor of a node with CPUs only."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ResourceDescriptor",
        "metadata": {"name": f"{name}-{generation}", "uid": f"d-{name}-{generation}", "resourceVersion": str(version)},
        "spec": {
            "node": name, "generation": generation, "observedAt": "2026-01-01T00:00:00Z",
            "host": {"allocatableMilliCpu": cpus * 1000, "allocatableMemoryBytes": cpus * 2**30},
        },
    }  # fmt: skip
