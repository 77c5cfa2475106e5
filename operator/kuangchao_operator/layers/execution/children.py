"""Manifests of a job's children beside its pods: the headless Service and the Secrets with tokens. Pure."""

import base64
from collections.abc import Mapping
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.wire import TokenBundle

PODS_PER_SECRET: Final = 32
"""A pod's bundle takes some 7 KB; so many of them stay far below the 512 KiB that any object of ours may have."""


def owner_reference(job: TrainingJob) -> dict[str, Any]:
    """The job as controller of a child: deleting the job deletes the child, and strangers are told apart by it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "TrainingJob",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def child_metadata(job: TrainingJob, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of a child with the labels that all children have."""
    common = {
        names.LABEL_JOB: job.metadata.name,
        names.LABEL_JOB_UID: job.metadata.uid,
        names.LABEL_MANAGED_BY: names.FIELD_MANAGER,
    }
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {**common, **labels},
        "ownerReferences": [owner_reference(job)],
    }


def build_service(job: TrainingJob) -> dict[str, Any]:
    """The headless Service that gives pods their DNS names, also before they are ready: they find each other first."""
    meta = job.metadata
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(job, names.service_name(meta.name, meta.uid), {}),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB_UID: meta.uid},
        },
    }


def token_key(index: int) -> str:
    """Key of a pod's bundle in its Secret."""
    return f"pod-{index}"


def secret_of(job: TrainingJob, incarnation: int, index: int) -> str:
    """The Secret that holds a pod's bundle."""
    chunk = index // PODS_PER_SECRET
    first = names.secret_name(job.metadata.name, job.metadata.uid, incarnation)
    return first if chunk == 0 else f"{first}-{chunk}"


def build_secrets(job: TrainingJob, incarnation: int, bundles: Mapping[int, TokenBundle]) -> list[dict[str, Any]]:
    """The Secrets of an incarnation, a key for each pod; pods mount their own key only."""
    chunks: dict[str, dict[str, str]] = {}
    for index in sorted(bundles):
        raw = bundles[index].canonical()
        data = chunks.setdefault(secret_of(job, incarnation, index), {})
        data[token_key(index)] = base64.b64encode(raw).decode()
    labels = {names.LABEL_INCARNATION: str(incarnation), names.LABEL_TOKEN: "true"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": child_metadata(job, name, labels),
            "data": data,
        }
        for name, data in chunks.items()
    ]
