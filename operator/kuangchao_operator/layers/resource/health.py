"""Whether a device counts: a pure verdict on a reading. Reasons hold no changing numbers, so that a descriptor changes
when the verdict does and not with each degree."""

from collections.abc import Iterable
from typing import Final

from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import Device
from kuangchao_operator.layers.resource.model import DeviceReading

PARTITIONED: Final = "split into MIG instances: not a whole device"
"""The reason of a device that no repair makes whole: somebody wants it so."""


def judge(reading: DeviceReading, limits: HealthThresholds) -> Device:
    """The device with its verdict."""
    reason = _fault(reading, limits)
    return Device(
        index=reading.index,
        uuid=reading.uuid,
        kind=reading.kind,
        model=reading.model,
        memory_bytes=reading.memory_bytes or 0,
        compute_capability=reading.compute_capability,
        pci_bus_id=reading.pci_bus_id,
        numa_node=reading.numa_node,
        healthy=reason is None,
        reason=reason,
    )


def _fault(reading: DeviceReading, limits: HealthThresholds) -> str | None:
    """The gravest fault, or None. What the driver does not know (None) is no fault."""
    if reading.fault is not None:
        return reading.fault
    if reading.remap_failed:
        return "row remapping failed: the device must be replaced"
    if reading.uncorrectable_ecc is not None and reading.uncorrectable_ecc > limits.max_uncorrectable_ecc:
        return f"uncorrectable ECC errors above {limits.max_uncorrectable_ecc} since the driver was loaded"
    if reading.remap_pending:
        return "row remapping pending: the device needs a reset"
    if reading.temperature_celsius is not None and reading.temperature_celsius > limits.max_temperature_celsius:
        return f"temperature above {limits.max_temperature_celsius} C"
    if reading.partitioned:
        return PARTITIONED
    return None


def strictest(thresholds: Iterable[HealthThresholds]) -> HealthThresholds:
    """The limits of a node that several pools select: a node has one descriptor, so the strictest pool decides."""
    limits = tuple(thresholds) or (HealthThresholds(),)
    return HealthThresholds(
        max_temperature_celsius=min(limit.max_temperature_celsius for limit in limits),
        max_uncorrectable_ecc=min(limit.max_uncorrectable_ecc for limit in limits),
    )
