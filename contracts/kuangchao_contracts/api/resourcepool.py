"""ResourcePool: a named set of nodes from which jobs reserve whole gangs of devices."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from kuangchao_contracts.api.meta import Column, Conditions, CustomObject, rules
from kuangchao_contracts.base import MOST_COUNT, Contract, ShortText
from kuangchao_contracts.descriptor import DeviceKind

Quantity = Annotated[str, Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
LabelMap = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]


class Queueing(StrEnum):
    """Order of admission. StrictFIFO: an older job of the same priority is never overtaken. BestEffortFIFO: a job
    that does not fit now lets later ones that fit go first."""

    STRICT = "StrictFIFO"
    BEST_EFFORT = "BestEffortFIFO"


class HealthThresholds(Contract):
    """When a device counts as unhealthy; read by the node agent."""

    max_temperature_celsius: Annotated[int, Field(ge=40, le=120)] = 95
    max_uncorrectable_ecc: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class ResourcePoolSpec(Contract):
    """What belongs to the pool and how much of it may be used."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("self.deviceType == oldSelf.deviceType", "deviceType cannot change; make a new pool"),
        )
    )

    node_selector: LabelMap = {}
    device_type: DeviceKind = DeviceKind.CPU
    cpu_per_device: Quantity = "1"
    memory_per_device: Quantity | None = None
    quota: Annotated[int, Field(ge=0, le=MOST_COUNT)] | None = None
    debug_share_percent: Annotated[int, Field(ge=0, le=20)] = 20
    queueing: Queueing = Queueing.BEST_EFFORT
    bandwidth_per_node: Quantity | None = None
    health: HealthThresholds = HealthThresholds()


class UnhealthyDevice(Contract):
    """A device or node that does not count, and why."""

    node: ShortText
    device: ShortText = ""
    reason: ShortText


class ResourcePoolStatus(Contract):
    """What the operator sees."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    nodes: Annotated[int, Field(ge=0)] = 0
    total: Annotated[int, Field(ge=0)] = 0
    free: Annotated[int, Field(ge=0)] = 0
    reserved: Annotated[int, Field(ge=0)] = 0
    waiting_jobs: Annotated[int, Field(ge=0)] = 0
    active_jobs: Annotated[int, Field(ge=0)] = 0
    unhealthy: Annotated[tuple[UnhealthyDevice, ...], Field(max_length=256)] = ()
    conditions: Conditions = ()


class ResourcePool(CustomObject):
    """kuangchao.io/v1alpha1 ResourcePool (cluster scope)."""

    plural: ClassVar[str] = "resourcepools"
    short_names: ClassVar[tuple[str, ...]] = ("rpool",)
    namespaced: ClassVar[bool] = False
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Device", type="string", json_path=".spec.deviceType"),
        Column(name="Total", type="integer", json_path=".status.total"),
        Column(name="Free", type="integer", json_path=".status.free"),
        Column(name="Nodes", type="integer", json_path=".status.nodes"),
        Column(name="Waiting", type="integer", json_path=".status.waitingJobs"),
        Column(name="Ready", type="string", json_path='.status.conditions[?(@.type=="Ready")].status'),
        Column(name="Age", type="date", json_path=".metadata.creationTimestamp"),
    )
    rules: ClassVar[tuple[dict[str, Any], ...]] = ()

    kind: Literal["ResourcePool"] = "ResourcePool"
    spec: ResourcePoolSpec
    status: ResourcePoolStatus | None = None
