"""What a node has, as its node agent found it: the value inside a ResourceDescriptor object."""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import INT64, Contract, ShortText, canonical_json


class DeviceKind(StrEnum):
    """Kind of training device."""

    CPU = "cpu"
    GPU = "gpu"


class Device(Contract):
    """One device. `memory_bytes` is device memory of a GPU; a CPU device has none of its own (0)."""

    index: Annotated[int, Field(ge=0, le=1023)]
    uuid: ShortText
    kind: DeviceKind
    model: ShortText
    memory_bytes: Annotated[int, Field(ge=0), INT64] = 0
    compute_capability: Annotated[str, Field(max_length=16)] | None = None
    pci_bus_id: Annotated[str, Field(max_length=32)] | None = None
    numa_node: Annotated[int, Field(ge=0), INT64] | None = None
    healthy: bool = True
    reason: ShortText | None = None


class HostCapacity(Contract):
    """CPU and memory that the kubelet offers, and what pods that are not ours ask for."""

    allocatable_milli_cpu: Annotated[int, Field(ge=0), INT64]
    allocatable_memory_bytes: Annotated[int, Field(ge=0), INT64]
    others_milli_cpu: Annotated[int, Field(ge=0), INT64] = 0
    others_memory_bytes: Annotated[int, Field(ge=0), INT64] = 0


class DeviceLink(Contract):
    """A link between two devices of the node by index; kind is the driver's word (NV18, PIX, SYS)."""

    first: Annotated[int, Field(ge=0), INT64]
    second: Annotated[int, Field(ge=0), INT64]
    kind: Annotated[str, Field(max_length=16)]


class NodeDescriptor(Contract):
    """Everything known of one node at one time. Immutable: a change is a new descriptor, generation + 1."""

    node: Annotated[str, Field(max_length=253)]
    generation: Annotated[int, Field(ge=1), INT64]
    observed_at: datetime
    host: HostCapacity
    devices: Annotated[tuple[Device, ...], Field(max_length=1024)] = ()
    links: Annotated[tuple[DeviceLink, ...], Field(max_length=4096)] = ()
    driver: ShortText | None = None

    def content_digest(self) -> str:
        """Digest of what was found, without generation and time: equal digests mean nothing changed."""
        wire = self.wire()
        del wire["generation"], wire["observedAt"]
        return hashlib.sha256(canonical_json(wire)).hexdigest()
