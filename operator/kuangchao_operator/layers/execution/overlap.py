"""Pools may share nodes: what jobs of other pools hold there, in this pool's own devices. Pure.

Such claims take room on nodes; they are not the pool's, so neither its quota nor its debug share counts them.
"""

from collections.abc import Collection, Iterable, Iterator

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.units import milli, to_bytes
from kuangchao_operator.layers.execution.model import Claim


def foreign_claims(
    spec: ResourcePoolSpec, nodes: Collection[str], others: Iterable[tuple[ResourcePoolSpec, Claim]]
) -> Iterator[Claim]:
    """Claims of other pools, as far as they lie on `nodes`, in devices of a pool with this specification."""
    for other, claim in others:
        shares = tuple(
            share.model_copy(update={"devices": in_devices_of(spec, other, share.devices)})
            for share in claim.shares
            if share.node in nodes and other.device_type is spec.device_type
        )
        if shares:
            yield claim.model_copy(update={"shares": shares})


def in_devices_of(spec: ResourcePoolSpec, other: ResourcePoolSpec, devices: int) -> int:
    """How many devices of one pool so many devices of another take up, rounded up. A GPU is a GPU in any pool."""
    if spec.device_type is DeviceKind.GPU:
        return devices
    cpu = _ratio(devices * milli(other.cpu_per_device, "cpuPerDevice"), milli(spec.cpu_per_device, "cpuPerDevice"))
    if spec.memory_per_device is None or other.memory_per_device is None:
        return cpu
    theirs, ours = (to_bytes(m, "memoryPerDevice") for m in (other.memory_per_device, spec.memory_per_device))
    return max(cpu, _ratio(devices * theirs, ours))


def _ratio(held: int, each: int) -> int:
    # a pool whose devices are of no size has none to give away
    return -(-held // each) if each else 0
