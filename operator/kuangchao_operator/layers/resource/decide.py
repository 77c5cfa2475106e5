"""What a pool has, from the descriptors of its nodes; and when a node's descriptor must be followed by a new one.

Pure: descriptors in, values out. Nothing here allocates: it counts what exists.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from kuangchao_contracts.api.meta import Condition, ConditionStatus
from kuangchao_contracts.api.resourcepool import (
    ResourcePool,
    ResourcePoolSpec,
    ResourcePoolStatus,
    UnhealthyDevice,
)
from kuangchao_contracts.descriptor import Device, DeviceKind, NodeDescriptor
from kuangchao_contracts.plan import DeviceShape
from kuangchao_contracts.reasons import ConditionType, Reason
from kuangchao_contracts.units import milli, to_bytes
from kuangchao_operator.layers.resource.fabric import fabric_of
from kuangchao_operator.layers.resource.health import PARTITIONED
from kuangchao_operator.layers.resource.model import Found, PoolNode

MEMORY_GRAIN = 64 * 2**20
"""Shares of a node's memory are rounded down to this, so that a small pod that comes or goes changes no plan."""
MAX_SHAPES = 64
MAX_UNHEALTHY = 256
MAX_NAMED = 5
"""Jobs that a message names."""
NO_DEVICES = "label without devices"
NO_DESCRIPTOR = "no descriptor: the node agent has not reported"
NOT_READY = "node is not ready"


def newest(descriptors: Iterable[NodeDescriptor]) -> tuple[NodeDescriptor, ...]:
    """The descriptor with the highest generation of each node, by node name."""
    latest: dict[str, NodeDescriptor] = {}
    for descriptor in descriptors:
        known = latest.get(descriptor.node)
        if known is None or descriptor.generation > known.generation:
            latest[descriptor.node] = descriptor
    return tuple(latest[node] for node in sorted(latest))


def successor(previous: NodeDescriptor | None, found: Found, now: datetime) -> NodeDescriptor | None:
    """The descriptor that follows `previous`, or None when nothing has changed."""
    generation = previous.generation + 1 if previous is not None else 1
    candidate = NodeDescriptor(
        node=found.node,
        generation=generation,
        observed_at=now,
        host=found.host,
        devices=found.devices,
        links=found.links,
        driver=found.driver,
    )
    if previous is not None and previous.content_digest() == candidate.content_digest():
        return None
    return candidate


def slots(pool: ResourcePoolSpec, descriptor: NodeDescriptor, node_ready: bool = True) -> PoolNode:
    """What a node of the pool can give away; never negative, and what does not count is listed with its reason."""
    node = _gpu_node(descriptor) if pool.device_type is DeviceKind.GPU else _cpu_node(pool, descriptor)
    if node_ready:
        return node
    return node.replace(ready=False, unhealthy=(("", NOT_READY), *node.unhealthy))


def undescribed(node: str, node_ready: bool = True) -> PoolNode:
    """A node that the pool selects but that no agent has described."""
    return PoolNode(node=node, devices=0, ready=node_ready, unhealthy=(("", NO_DESCRIPTOR),))


def _gpus(descriptor: NodeDescriptor) -> tuple[Device, ...]:
    return tuple(device for device in descriptor.devices if device.kind is DeviceKind.GPU)


def _gpu_node(descriptor: NodeDescriptor) -> PoolNode:
    gpus = _gpus(descriptor)
    if not gpus:
        return PoolNode(node=descriptor.node, devices=0, unhealthy=(("", NO_DEVICES),))
    healthy = tuple(gpu for gpu in gpus if gpu.healthy)
    model, memory = _weakest(healthy or gpus)
    return PoolNode(
        node=descriptor.node,
        devices=len(healthy),
        device_memory_bytes=memory,
        model=model,
        unhealthy=tuple((gpu.uuid, gpu.reason or "unhealthy") for gpu in gpus if not gpu.healthy),
    )


def _weakest(devices: tuple[Device, ...]) -> tuple[str, int]:
    """Model and memory of the device with the least memory; unknown memory (0) only if none is known."""
    known = [device for device in devices if device.memory_bytes > 0] or list(devices)
    weakest = min(known, key=lambda device: (device.memory_bytes, device.index))
    return weakest.model, weakest.memory_bytes


def _cpu_node(pool: ResourcePoolSpec, descriptor: NodeDescriptor) -> PoolNode:
    """A CPU device is `cpuPerDevice` of what the kubelet offers less what others ask for, with its share of memory."""
    model = next((device.model for device in descriptor.devices if device.kind is DeviceKind.CPU), "")
    per_device = milli(pool.cpu_per_device, "cpuPerDevice")
    fixed = to_bytes(pool.memory_per_device, "memoryPerDevice") if pool.memory_per_device is not None else None
    if per_device == 0 or fixed == 0:
        zero = "cpuPerDevice" if per_device == 0 else "memoryPerDevice"
        return PoolNode(node=descriptor.node, devices=0, model=model, unhealthy=(("", f"{zero} of the pool is 0"),))
    host = descriptor.host
    cpu = max(0, host.allocatable_milli_cpu - host.others_milli_cpu)
    memory = max(0, host.allocatable_memory_bytes - host.others_memory_bytes)
    count = cpu // per_device if fixed is None else min(cpu // per_device, memory // fixed)
    share = fixed if fixed is not None else _share(memory, count)
    short = () if count else (("", "no room for a device beside the pods of others"),)
    return PoolNode(node=descriptor.node, devices=count, device_memory_bytes=share, model=model, unhealthy=short)


def _share(memory: int, count: int) -> int:
    share = memory // count if count else 0
    return share // MEMORY_GRAIN * MEMORY_GRAIN or share


def shapes(pool: ResourcePoolSpec, descriptors: Iterable[NodeDescriptor]) -> tuple[DeviceShape, ...]:
    """The classes of devices that the pool consists of, whatever is free or broken just now.

    A broken GPU counts: a job that needs it waits for it to come back instead of being refused for good. One that is
    split into MIG slices does not: slices form no group of ranks, and no repair makes it whole.
    """
    found = [shape for descriptor in newest(descriptors) if (shape := _shape(pool, descriptor)) is not None]
    merged = _merged(found, lambda shape: shape)
    for coarser in (_any_memory, _power_of_two):
        if len(merged) > MAX_SHAPES:
            merged = _merged(merged, coarser)
    return tuple(sorted(merged, key=lambda s: (s.kind, s.model, s.memory_bytes, s.per_node, s.nodes, s.canonical())))


def _shape(pool: ResourcePoolSpec, descriptor: NodeDescriptor) -> DeviceShape | None:
    node = slots(pool, descriptor)
    whole = sum(gpu.reason != PARTITIONED for gpu in _gpus(descriptor))
    count = whole if pool.device_type is DeviceKind.GPU else node.devices
    if count == 0:
        return None
    return DeviceShape(
        kind=pool.device_type.value,
        model=node.model,
        memory_bytes=node.device_memory_bytes,
        per_node=count,
        nodes=1,
        fabric=fabric_of(descriptor) if pool.device_type is DeviceKind.GPU else None,
    )


def _any_memory(shape: DeviceShape) -> DeviceShape:
    return shape.replace(memory_bytes=0)


def _power_of_two(shape: DeviceShape) -> DeviceShape:
    return shape.replace(memory_bytes=0, model="", fabric=None, per_node=1 << (shape.per_node.bit_length() - 1))


def _merged(found: list[DeviceShape], key: Callable[[DeviceShape], DeviceShape]) -> list[DeviceShape]:
    """One shape for each key; of what differs inside a group the least is promised."""
    groups: dict[DeviceShape, list[DeviceShape]] = {}
    for shape in found:
        groups.setdefault(key(shape).replace(nodes=1), []).append(shape)
    return [
        common.replace(
            nodes=sum(shape.nodes for shape in group), memory_bytes=min(shape.memory_bytes for shape in group)
        )
        for common, group in groups.items()
    ]


def pool_status(
    pool: ResourcePool,
    nodes: Iterable[PoolNode],
    *,
    reserved: int,
    foreign: int,
    waiting: int,
    users: Sequence[str],
    now: datetime,
) -> ResourcePoolStatus:
    """Totals for people and programs; free is never below zero.

    `users` are the jobs that hold devices of the pool, `reserved` is how many they hold, `foreign` what jobs of other
    pools hold on the same nodes.
    """
    members = sorted(nodes, key=lambda node: node.node)
    total = sum(node.devices for node in members if node.ready)
    usable = total if pool.spec.quota is None else min(total, pool.spec.quota)
    unhealthy = [
        UnhealthyDevice(node=node.node, device=device, reason=reason)
        for node in members
        for device, reason in node.unhealthy
    ]
    return ResourcePoolStatus(
        observed_generation=pool.metadata.generation,
        nodes=len(members),
        total=total,
        free=max(0, min(usable - reserved, total - reserved - foreign)),
        reserved=reserved,
        waiting_jobs=waiting,
        active_jobs=len(users),
        unhealthy=tuple(unhealthy[:MAX_UNHEALTHY]),
        conditions=(_ready(pool, len(members), total, foreign, users, now),),
    )


def _ready(pool: ResourcePool, nodes: int, total: int, foreign: int, users: Sequence[str], now: datetime) -> Condition:
    status, reason = ConditionStatus.TRUE, Reason.AS_EXPECTED
    quota = f", quota {pool.spec.quota}" if pool.spec.quota is not None else ""
    shared = f", {foreign} of them held by jobs of other pools" if foreign else ""
    message = f"{total} devices on {nodes} nodes{quota}{shared}"
    if total == 0:
        status, reason = ConditionStatus.FALSE, Reason.POOL_EMPTY
        message = "no node matches nodeSelector" if nodes == 0 else f"none of {nodes} nodes has a usable device"
    if pool.metadata.deletion_timestamp is not None and users:
        # it takes no job any more
        status, reason = ConditionStatus.FALSE, Reason.POOL_IN_USE
        message = f"deletion waits for {len(users)} jobs that use the pool: {', '.join(users[:MAX_NAMED])}; {message}"
    since = now
    for old in pool.status.conditions if pool.status is not None else ():
        if old.type == ConditionType.READY and old.status is status:
            since = old.last_transition_time
    return Condition(
        type=ConditionType.READY,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=pool.metadata.generation,
    )
