"""The resource layer's own values: what a driver reads, what an agent found, what a pool may count on a node."""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText
from kuangchao_contracts.descriptor import Device, DeviceKind, DeviceLink, HostCapacity


class DeviceReading(Contract):
    """One device as its driver tells it. None is what the driver does not know: never 0, never a fault."""

    index: Annotated[int, Field(ge=0, le=1023)]
    uuid: ShortText
    kind: DeviceKind
    model: ShortText
    memory_bytes: int | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    fault: ShortText | None = None
    """Why the driver cannot use the device: lost, or in need of a reset."""
    temperature_celsius: int | None = None
    uncorrectable_ecc: int | None = None
    """Since the driver was loaded: the lifetime count would never let a device recover."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    partitioned: bool | None = None
    """Split into MIG instances: not a whole device."""


class DriverReading(Contract):
    """Everything that a driver found at one moment."""

    devices: tuple[DeviceReading, ...]
    links: tuple[DeviceLink, ...] = ()
    driver: ShortText | None = None


class Found(Contract):
    """What a node has now, with health judged: a descriptor without generation and time."""

    node: str
    host: HostCapacity
    devices: tuple[Device, ...]
    links: tuple[DeviceLink, ...] = ()
    driver: ShortText | None = None


class PoolNode(Contract):
    """Devices of one node that a pool may give away while the node is ready; `unhealthy` are (device, reason) of what
    does not count, with device "" for the node itself."""

    node: str
    devices: Annotated[int, Field(ge=0)]
    device_memory_bytes: Annotated[int, Field(ge=0)] = 0
    model: ShortText = ""
    ready: bool = True
    unhealthy: tuple[tuple[str, str], ...] = ()
