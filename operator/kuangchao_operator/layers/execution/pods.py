"""Manifests of a job's pods. Pure: the same job, plan and settings give the same bytes.

Every pod runs restricted, without rights on the API server, on the one node it was placed on, and sees no token but its
own. What a user may change is checked in `overrides` before it gets here, and checked again by merging only there.
"""

from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.base import Contract
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.units import milli, to_bytes
from kuangchao_contracts.wire import ACCOUNT_AUDIENCE, TOKEN_BUNDLE
from kuangchao_operator.layers.execution import overrides
from kuangchao_operator.layers.execution.children import child_metadata, secret_of, token_key
from kuangchao_operator.layers.execution.launchspec import checkpoint_path, grace_seconds

USER: Final = 65_532
GPU_RESOURCE: Final = "nvidia.com/gpu"
TOKEN_PATH: Final = "/var/run/kuangchao/token"
TRUST_PATH: Final = "/var/run/kuangchao/trust"
ACCOUNT_PATH: Final = "/var/run/kuangchao/account"
ACCOUNT_FILE: Final = "token"
ACCOUNT_SECONDS: Final = 600
"""The shortest life that a projected token may have."""
CHECKPOINT_PATH: Final = "/checkpoints"
AGENT: Final = ["python", "-m", "kuangchao_worker.agent"]


class PodSettings(Contract):
    """What pods depend on beside their job: the operator's settings and the pool's."""

    gate_url: str
    image: str
    """Image of jobs that name none."""
    pool: ResourcePoolSpec
    trust_config_map: str = "kuangchao-trust"
    operation_logs: str = "volume"
    lease_grace_seconds: int = 3_600
    exchange: bool = False
    """Whether pods exchange an account token of theirs for their bundle, instead of mounting it from a Secret."""


def build_pod(
    job: TrainingJob, plan: ParallelPlan, node: str, incarnation: int, attempt: int, index: int, settings: PodSettings
) -> dict[str, Any]:
    """The manifest of one pod. Raises InvalidInputError, naming the path, for an override that is not allowed."""
    overrides.check(job.spec.pod_overrides)
    meta, template = job.metadata, job.spec.template
    labels = {
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_INCARNATION: str(incarnation),
        names.LABEL_POD_INDEX: str(index),
        names.LABEL_POOL: job.spec.pool,
        **({names.LABEL_DELIVERY: names.BY_EXCHANGE} if settings.exchange else {}),
    }
    metadata = child_metadata(job, names.pod_name(meta.name, meta.uid, incarnation, index), labels)
    metadata["labels"] = {**template.labels, **metadata["labels"]}
    base = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _spec(job, plan, node, incarnation, index, settings),
    }
    merged: dict[str, Any] = overrides.merge(base, job.spec.pod_overrides)
    return merged


def _spec(
    job: TrainingJob, plan: ParallelPlan, node: str, incarnation: int, index: int, settings: PodSettings
) -> dict[str, Any]:
    template = job.spec.template
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": names.pod_hostname(incarnation, index),
        "subdomain": names.service_name(job.metadata.name, job.metadata.uid),
        "terminationGracePeriodSeconds": grace_seconds(job),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
                    ]
                }
            }
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, plan, incarnation, index, settings)],
        "volumes": _volumes(job, incarnation, index, settings),
    }
    if template.tolerations:
        spec["tolerations"] = [t.wire() for t in template.tolerations]
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [s.wire() for s in template.image_pull_secrets]
    return spec


def _container(
    job: TrainingJob, plan: ParallelPlan, incarnation: int, index: int, settings: PodSettings
) -> dict[str, Any]:
    template = job.spec.template
    container: dict[str, Any] = {
        "name": overrides.OUR_CONTAINER,
        "image": template.image or settings.image,
        "command": list(AGENT),
        "env": [*_environment(job, incarnation, index, settings), *(e.wire() for e in template.env)],
        "resources": _resources(job, plan.per_pod, settings.pool),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "File",
        "volumeMounts": _mounts(job, settings),
    }
    if template.image_pull_policy is not None:
        container["imagePullPolicy"] = template.image_pull_policy
    return container


def _environment(job: TrainingJob, incarnation: int, index: int, settings: PodSettings) -> list[dict[str, Any]]:
    """Addresses and numbers. A token is never in here: anyone who can read the pod could read it."""
    meta = job.metadata
    host = f"{names.pod_hostname(incarnation, index)}.{names.service_name(meta.name, meta.uid)}.{meta.namespace}.svc"
    values = {
        "KUANGCHAO_GATE_URL": settings.gate_url,
        "KUANGCHAO_POD": names.pod_name(meta.name, meta.uid, incarnation, index),
        "KUANGCHAO_POD_INDEX": str(index),
        "KUANGCHAO_INCARNATION": str(incarnation),
        "KUANGCHAO_HOST": host,
        "KUANGCHAO_GRACE_SECONDS": str(grace_seconds(job)),
        "KUANGCHAO_OPLOG": settings.operation_logs,
        "KUANGCHAO_LEASE_GRACE_SECONDS": str(settings.lease_grace_seconds),
    }
    if settings.exchange:
        values["KUANGCHAO_ACCOUNT_TOKEN"] = f"{ACCOUNT_PATH}/{ACCOUNT_FILE}"
    uid = {"name": "KUANGCHAO_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return [*({"name": name, "value": value} for name, value in values.items()), uid]


def _volumes(job: TrainingJob, incarnation: int, index: int, settings: PodSettings) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        *_token_volumes(job, incarnation, index, exchange=settings.exchange),
        {"name": "kuangchao-trust", "configMap": {"name": settings.trust_config_map}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    storage = job.spec.checkpoint.storage
    if storage is not None:
        claim = {"claimName": storage.claim_name}
        volumes.append({"name": "kuangchao-checkpoints", "persistentVolumeClaim": claim})
    return [*volumes, *job.spec.template.volumes]


def _token_volumes(job: TrainingJob, incarnation: int, index: int, *, exchange: bool) -> list[dict[str, Any]]:
    """The bundle: from the pod's own key of a Secret, or memory into which the agent writes what it was given."""
    if exchange:
        token = {"audience": ACCOUNT_AUDIENCE, "expirationSeconds": ACCOUNT_SECONDS, "path": ACCOUNT_FILE}
        account = {"defaultMode": 0o440, "sources": [{"serviceAccountToken": token}]}
        return [
            {"name": "kuangchao-token", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "kuangchao-account", "projected": account},
        ]
    item = {"key": token_key(index), "path": TOKEN_BUNDLE, "mode": 0o440}
    secret = {"secretName": secret_of(job, incarnation, index), "defaultMode": 0o440, "items": [item]}
    return [{"name": "kuangchao-token", "secret": secret}]


def _mounts(job: TrainingJob, settings: PodSettings) -> list[dict[str, Any]]:
    account = {"name": "kuangchao-account", "mountPath": ACCOUNT_PATH, "readOnly": True}
    mounts: list[dict[str, Any]] = [
        {"name": "kuangchao-token", "mountPath": TOKEN_PATH, "readOnly": not settings.exchange},
        *([account] if settings.exchange else []),
        {"name": "kuangchao-trust", "mountPath": TRUST_PATH, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path in the pod
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if checkpoint_path(job) is not None:
        mounts.append({"name": "kuangchao-checkpoints", "mountPath": CHECKPOINT_PATH})
    return [*mounts, *(m.wire() for m in job.spec.template.volume_mounts)]


def _resources(job: TrainingJob, per_pod: int, pool: ResourcePoolSpec) -> dict[str, dict[str, str]]:
    """What the devices imply, raised by what the user asks beside it: less would break the pool's accounts."""
    extra = job.spec.template.resources
    requests, limits = dict(extra.requests), dict(extra.limits)
    if pool.device_type is DeviceKind.CPU:
        implied = milli(pool.cpu_per_device) * per_pod
        requests["cpu"] = f"{max(implied, milli(requests.get('cpu', '0')))}m"
    else:
        requests[GPU_RESOURCE] = limits[GPU_RESOURCE] = str(per_pod)
    if pool.memory_per_device is not None:
        least = to_bytes(pool.memory_per_device) * per_pod
        requests["memory"] = str(max(least, to_bytes(requests.get("memory", "0"))))
        limits["memory"] = str(max(int(requests["memory"]), to_bytes(limits.get("memory", "0"))))
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
