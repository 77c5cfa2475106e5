"""What a pool counts on its nodes, the succession of descriptors, and the pool's status."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.api import ResourcePool
from kuangchao_contracts.api.meta import ConditionStatus
from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.descriptor import Device, DeviceKind, DeviceLink, HostCapacity, NodeDescriptor
from kuangchao_contracts.plan import DeviceShape
from kuangchao_contracts.units import milli
from kuangchao_operator.layers.resource import decide
from kuangchao_operator.layers.resource.health import PARTITIONED
from kuangchao_operator.layers.resource.model import Found, PoolNode

NOW = datetime(2026, 1, 2, tzinfo=UTC)
GIB = 2**30
CPU_POOL = ResourcePoolSpec()
GPU_POOL = ResourcePoolSpec(device_type=DeviceKind.GPU)


def gpu(index: int, **changes: Any) -> Device:
    fields = {"index": index, "uuid": f"GPU-{index}", "kind": "gpu", "model": "H100", "memory_bytes": 80 * GIB}
    return Device.model_validate({**fields, **changes})


def cpu_node(node: str = "a", cpu: int = 4000, memory: int = 8 * GIB, **changes: Any) -> NodeDescriptor:
    host = HostCapacity(
        allocatable_milli_cpu=cpu,
        allocatable_memory_bytes=memory,
        others_milli_cpu=changes.pop("others_cpu", 0),
        others_memory_bytes=changes.pop("others_memory", 0),
    )
    package = Device(index=0, uuid="cpu-0", kind=DeviceKind.CPU, model="EPYC")
    return NodeDescriptor(
        node=node, generation=changes.pop("generation", 1), observed_at=NOW, host=host, devices=(package,), **changes
    )


def gpu_node(node: str = "g", *devices: Device) -> NodeDescriptor:
    return cpu_node(node).replace(devices=devices)


def test_a_cpu_device_is_a_share_of_what_others_leave() -> None:
    node = decide.slots(CPU_POOL, cpu_node(cpu=4000, others_cpu=500, others_memory=2 * GIB))
    assert node == PoolNode(node="a", devices=3, device_memory_bytes=2 * GIB, model="EPYC")


def test_cpu_per_device_and_memory_per_device_of_the_pool() -> None:
    pool = ResourcePoolSpec(cpu_per_device="250m", memory_per_device="1Gi")
    assert decide.slots(pool, cpu_node(cpu=1000, memory=16 * GIB)).devices == 4
    short = decide.slots(pool, cpu_node(cpu=4000, memory=3 * GIB))
    assert (short.devices, short.device_memory_bytes) == (3, GIB)


def test_a_full_node_has_none_and_says_why() -> None:
    node = decide.slots(CPU_POOL, cpu_node(cpu=1000, others_cpu=1500, others_memory=99 * GIB))
    assert (node.devices, node.device_memory_bytes) == (0, 0)
    assert node.unhealthy == (("", "no room for a device beside the pods of others"),)


@pytest.mark.parametrize("pool", [{"cpuPerDevice": "0"}, {"memoryPerDevice": "0"}])
def test_a_pool_of_devices_of_nothing_has_none(pool: dict[str, str]) -> None:
    node = decide.slots(ResourcePoolSpec.model_validate(pool), cpu_node())
    assert node.devices == 0
    assert node.unhealthy == (("", f"{next(iter(pool))} of the pool is 0"),)


def test_memory_shares_do_not_change_with_every_small_pod() -> None:
    calm, busy = (decide.slots(CPU_POOL, cpu_node(others_memory=n * 2**20)) for n in (10, 60))
    assert calm.device_memory_bytes == busy.device_memory_bytes
    tiny = decide.slots(CPU_POOL, cpu_node(memory=100 * 2**20))
    assert tiny.device_memory_bytes == 25 * 2**20


@given(
    cpu=st.integers(0, 10**6),
    memory=st.integers(0, 2**45),
    others_cpu=st.integers(0, 2 * 10**6),
    others_memory=st.integers(0, 2**46),
    per_device=st.sampled_from(["1m", "250m", "1", "7"]),
    fixed=st.sampled_from([None, "1Mi", "3Gi"]),
)
def test_devices_never_ask_for_more_than_is_left(
    cpu: int, memory: int, others_cpu: int, others_memory: int, per_device: str, fixed: str | None
) -> None:
    pool = ResourcePoolSpec(cpu_per_device=per_device, memory_per_device=fixed)
    node = decide.slots(pool, cpu_node(cpu=cpu, memory=memory, others_cpu=others_cpu, others_memory=others_memory))
    assert node.devices * milli(per_device) <= max(0, cpu - others_cpu)
    assert node.devices * node.device_memory_bytes <= max(0, memory - others_memory)


def test_only_healthy_gpus_are_given_away() -> None:
    node = decide.slots(GPU_POOL, gpu_node("g", gpu(0), gpu(1, healthy=False, reason="lost", memory_bytes=0), gpu(2)))
    assert (node.devices, node.device_memory_bytes, node.model) == (2, 80 * GIB, "H100")
    assert node.unhealthy == (("GPU-1", "lost"),)


def test_a_node_with_the_label_but_without_devices_is_listed() -> None:
    node = decide.slots(GPU_POOL, cpu_node())
    assert node == PoolNode(node="a", devices=0, unhealthy=(("", "label without devices"),))


def test_the_weakest_of_mixed_gpus_counts() -> None:
    node = decide.slots(GPU_POOL, gpu_node("g", gpu(0), gpu(1, model="T4", memory_bytes=16 * GIB)))
    assert (node.model, node.device_memory_bytes) == ("T4", 16 * GIB)


def test_a_node_that_is_not_ready_says_so() -> None:
    node = decide.slots(CPU_POOL, cpu_node(), node_ready=False)
    assert not node.ready
    assert node.unhealthy == (("", "node is not ready"),)
    assert decide.undescribed("x").unhealthy == (("", "no descriptor: the node agent has not reported"),)


def test_newest_takes_the_highest_generation_of_each_node() -> None:
    old, new, other = cpu_node("b", generation=9), cpu_node("b", generation=10), cpu_node("a")
    assert decide.newest([new, other, old]) == (other, new)


def test_equal_nodes_are_one_shape_and_order_does_not_matter() -> None:
    nodes = [cpu_node("a"), cpu_node("b"), cpu_node("c", cpu=8000)]
    made = decide.shapes(CPU_POOL, nodes)
    assert made == (
        DeviceShape(kind="cpu", model="EPYC", memory_bytes=GIB, per_node=8, nodes=1),
        DeviceShape(kind="cpu", model="EPYC", memory_bytes=2 * GIB, per_node=4, nodes=2),
    )
    assert decide.shapes(CPU_POOL, reversed(nodes)) == made


def test_a_broken_gpu_still_belongs_to_the_shape_of_the_pool() -> None:
    """A job for all eight waits for the card; it is not refused for good."""
    well = gpu_node("g", *(gpu(n) for n in range(8)))
    ill = gpu_node("g", *(gpu(n, healthy=n != 3) for n in range(8)))
    assert decide.shapes(GPU_POOL, [well]) == decide.shapes(GPU_POOL, [ill])
    assert decide.slots(GPU_POOL, ill).devices == 7


def test_gpus_in_mig_slices_are_of_no_shape() -> None:
    """Slices form no group of ranks and the card does not come back: the job is refused instead of waiting."""
    split = {"healthy": False, "reason": PARTITIONED}
    half = gpu_node("g", *(gpu(n, **(split if n < 4 else {})) for n in range(8)))
    assert [shape.per_node for shape in decide.shapes(GPU_POOL, [half])] == [4]
    assert decide.shapes(GPU_POOL, [gpu_node("g", *(gpu(n, **split) for n in range(8)))]) == ()


def test_nodes_without_devices_have_no_shape() -> None:
    assert decide.shapes(GPU_POOL, [cpu_node()]) == ()


def test_many_unlike_nodes_become_few_shapes_that_promise_no_more() -> None:
    nodes = [cpu_node(f"n{n}", cpu=1000 * (1 + n % 96), memory=(n + 1) * GIB) for n in range(500)]
    made = decide.shapes(CPU_POOL, nodes)
    assert len(made) <= decide.MAX_SHAPES
    assert sum(shape.nodes for shape in made) == 500
    assert sum(s.nodes * s.per_node for s in made) <= sum(decide.slots(CPU_POOL, n).devices for n in nodes)


def test_shapes_that_differ_in_memory_only_promise_the_least() -> None:
    nodes = [cpu_node(f"n{n:03}", memory=(n + 8) * GIB) for n in range(100)]
    assert decide.shapes(CPU_POOL, nodes) == (
        DeviceShape(kind="cpu", model="EPYC", memory_bytes=2 * GIB, per_node=4, nodes=100),
    )


def found(descriptor: NodeDescriptor) -> Found:
    return Found(
        node=descriptor.node,
        host=descriptor.host,
        devices=descriptor.devices,
        links=descriptor.links,
        driver=descriptor.driver,
    )


def test_the_first_descriptor_and_its_successors() -> None:
    first = decide.successor(None, found(cpu_node()), NOW)
    assert first == cpu_node()
    later = NOW + timedelta(hours=1)
    assert decide.successor(first, found(cpu_node()), later) is None
    second = decide.successor(first, found(cpu_node(cpu=2000)), later)
    assert second is not None
    assert (second.generation, second.observed_at, second.host.allocatable_milli_cpu) == (2, later, 2000)


@pytest.mark.parametrize(
    "change",
    [
        {"devices": ()},
        {"driver": "x"},
        {"links": (DeviceLink(first=0, second=1, kind="SYS"),)},
        {"host": HostCapacity(allocatable_milli_cpu=1, allocatable_memory_bytes=1)},
    ],
)
def test_every_kind_of_change_has_a_successor(change: dict[str, Any]) -> None:
    assert decide.successor(cpu_node(), found(cpu_node()).replace(**change), NOW) is not None


def pool(**changes: Any) -> ResourcePool:
    return ResourcePool.model_validate({"metadata": {"name": "p", "generation": 3}, "spec": {}, **changes})


def status(
    of: ResourcePool,
    *nodes: PoolNode,
    reserved: int = 0,
    foreign: int = 0,
    users: tuple[str, ...] = (),
    now: datetime = NOW,
) -> Any:
    return decide.pool_status(of, nodes, reserved=reserved, foreign=foreign, waiting=2, users=users, now=now)


def test_status_counts_ready_nodes_and_lists_the_rest() -> None:
    here = PoolNode(node="b", devices=4)
    away = PoolNode(node="a", devices=8, ready=False, unhealthy=(("", "not ready"),))
    made = status(pool(), here, away, reserved=1)
    assert (made.nodes, made.total, made.free, made.reserved, made.waiting_jobs) == (2, 4, 3, 1, 2)
    assert made.observed_generation == 3
    assert [(u.node, u.device, u.reason) for u in made.unhealthy] == [("a", "", "not ready")]
    assert made.conditions[0].status is ConditionStatus.TRUE
    assert made.conditions[0].message == "4 devices on 2 nodes"


def test_free_respects_the_quota_and_is_never_negative() -> None:
    node = PoolNode(node="a", devices=8)
    assert status(pool(spec={"quota": 5}), node, reserved=2).free == 3
    assert status(pool(spec={"quota": 5}), node, reserved=7).free == 0


def test_what_jobs_of_other_pools_hold_is_not_free() -> None:
    made = status(pool(spec={"quota": 7}), PoolNode(node="a", devices=8), reserved=2, foreign=3)
    assert (made.total, made.reserved, made.free) == (8, 2, 3)
    assert made.conditions[0].message == "8 devices on 1 nodes, quota 7, 3 of them held by jobs of other pools"


def test_an_empty_pool_is_not_ready_and_says_why() -> None:
    none = status(pool()).conditions[0]
    assert (none.status, none.reason) == (ConditionStatus.FALSE, "PoolEmpty")
    assert none.message == "no node matches nodeSelector"
    assert status(pool(), PoolNode(node="a", devices=0)).conditions[0].message == "none of 1 nodes has a usable device"


def test_deletion_that_waits_says_for_what() -> None:
    going = pool(metadata={"name": "p", "deletionTimestamp": NOW})
    ready = status(going, PoolNode(node="a", devices=1), users=("t/a", "t/b")).conditions[0]
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, "PoolInUse")
    assert ready.message.startswith("deletion waits for 2 jobs that use the pool: t/a, t/b; 1 devices")


def test_the_transition_time_changes_with_the_status_only() -> None:
    later = NOW + timedelta(hours=1)
    before = pool().replace(status=status(pool(), PoolNode(node="a", devices=1)))
    assert status(before, PoolNode(node="a", devices=2), now=later).conditions[0].last_transition_time == NOW
    assert status(before, now=later).conditions[0].last_transition_time == later


def test_the_list_of_unhealthy_devices_is_bounded() -> None:
    ill = PoolNode(node="a", devices=0, unhealthy=tuple((str(n), "lost") for n in range(1000)))
    assert len(status(pool(), ill).unhealthy) == decide.MAX_UNHEALTHY
