"""The small typed part of a pod that users set most, instead of a 600 KB PodTemplateSpec schema."""

from typing import Annotated, Any, Literal

from pydantic import Field

from kuangchao_contracts.api.meta import list_map
from kuangchao_contracts.api.resourcepool import LabelMap, Quantity
from kuangchao_contracts.base import INT64, Contract, ShortText

OpenObject = Annotated[
    dict[str, Any], Field(json_schema_extra={"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]


class EnvVar(Contract):
    """A container environment variable; valueFrom is passed through."""

    name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] | None = None
    value_from: OpenObject | None = None


class VolumeMount(Contract):
    """A mount in the training container."""

    name: Annotated[str, Field(max_length=63)]
    mount_path: Annotated[str, Field(max_length=512, pattern="^/")]
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    read_only: bool = False


class Toleration(Contract):
    """core/v1 Toleration."""

    key: ShortText | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: ShortText | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0), INT64] | None = None


class LocalObjectReference(Contract):
    """A named Secret in the job's namespace."""

    name: Annotated[str, Field(max_length=253, min_length=1)]


class ContainerResources(Contract):
    """Extra requests and limits beside those that the devices imply."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = {}


class PodTemplate(Contract):
    """What users may say about their pods directly; the rest goes into podOverrides."""

    image: Annotated[str, Field(max_length=512)] | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Field(max_length=8)] = ()
    env: Annotated[tuple[EnvVar, ...], Field(max_length=128, json_schema_extra=list_map("name"))] = ()
    resources: ContainerResources = ContainerResources()
    volumes: Annotated[tuple[OpenObject, ...], Field(max_length=32)] = ()
    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Field(max_length=32, json_schema_extra=list_map("mountPath"))
    ] = ()
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    labels: LabelMap = {}
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
