"""Devices that a node offers to a pool, from its descriptor. Pure.

A label alone never counts as capacity: a node of the selector without a descriptor, or without devices of the pool's
kind, has none, and the pool's status says so.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.descriptor import DeviceKind, NodeDescriptor
from kuangchao_contracts.plan import DeviceShape
from kuangchao_contracts.units import milli, to_bytes
from kuangchao_operator.kube.nodes import NodeRecord
from kuangchao_operator.layers.execution.model import NodeSlots

NO_DESCRIPTOR: Final = "NoDescriptor"
NO_DEVICES: Final = "LabelWithoutDevices"
NOT_READY: Final = "NodeNotReady"
CORDONED: Final = "Unschedulable"


def in_pool(node: NodeRecord, spec: ResourcePoolSpec) -> bool:
    """Whether a node bears all labels of the pool's selector."""
    return all(node.labels.get(key) == value for key, value in spec.node_selector.items())


def slots(node: NodeRecord, descriptor: NodeDescriptor | None, spec: ResourcePoolSpec) -> NodeSlots:
    """What the pool may give away on a node, and what it may not and why."""
    problems: list[tuple[str, str]] = []
    devices = memory = 0
    if descriptor is None:
        problems.append(("", NO_DESCRIPTOR))
    elif spec.device_type is DeviceKind.CPU:
        devices, memory = _cpu(descriptor, spec)
    else:
        mine = [d for d in descriptor.devices if d.kind is spec.device_type]
        good = [d for d in mine if d.healthy]
        problems += [(d.uuid, d.reason or "Unhealthy") for d in mine if not d.healthy]
        devices, memory = len(good), min((d.memory_bytes for d in good), default=0)
    if descriptor is not None and devices == 0 and not problems:
        problems.append(("", NO_DEVICES))
    if not node.ready:
        problems.append(("", NOT_READY))
    elif not node.schedulable:
        problems.append(("", CORDONED))
    return NodeSlots(
        node=node.name,
        devices=devices,
        device_memory_bytes=memory,
        ready=node.ready and node.schedulable,
        unhealthy=tuple(problems),
    )


def _cpu(descriptor: NodeDescriptor, spec: ResourcePoolSpec) -> tuple[int, int]:
    """Count and memory of a node's CPU devices. The memory of one does not depend on what others use just now."""
    host, per_device = descriptor.host, milli(spec.cpu_per_device)
    offered = max(1, host.allocatable_milli_cpu // per_device)
    free = max(0, host.allocatable_milli_cpu - host.others_milli_cpu) // per_device
    if spec.memory_per_device is None:
        return free, host.allocatable_memory_bytes // offered
    memory = to_bytes(spec.memory_per_device)
    room = max(0, host.allocatable_memory_bytes - host.others_memory_bytes)
    return min(free, room // memory if memory else free), memory


def shapes(
    nodes: Iterable[NodeSlots], descriptors: dict[str, NodeDescriptor], spec: ResourcePoolSpec
) -> tuple[DeviceShape, ...]:
    """The pool's shape: classes of equal nodes, also of those that are full or away just now."""
    classes: Counter[tuple[str, int, int]] = Counter()
    for node in nodes:
        if node.devices > 0:
            classes[(_model(descriptors[node.node], spec), node.device_memory_bytes, node.devices)] += 1
    return tuple(
        DeviceShape(kind=spec.device_type.value, model=model, memory_bytes=memory, per_node=devices, nodes=count)
        for (model, memory, devices), count in sorted(classes.items())
    )


def _model(descriptor: NodeDescriptor, spec: ResourcePoolSpec) -> str:
    found = {d.model for d in descriptor.devices if d.kind is spec.device_type}
    return min(found, default="")
