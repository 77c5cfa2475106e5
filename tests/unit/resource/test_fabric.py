"""The fabric of a node from the links of its GPUs, as recorded on real machines."""

from datetime import UTC, datetime
from itertools import combinations

import pytest
from tests.unit.resource.fake_nvml import FakeNvml, load

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.descriptor import Device, DeviceKind, DeviceLink, HostCapacity, NodeDescriptor
from kuangchao_contracts.fabric import Fabric
from kuangchao_operator.layers.resource.decide import shapes
from kuangchao_operator.layers.resource.fabric import fabric_of
from kuangchao_operator.layers.resource.nvml_driver import NvmlDriver

GIGA = 10**9
CUBE_MESH = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], "NV2"),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], "NV1"),
}


def node(count: int, capability: str | None, kinds: dict[tuple[int, int], str], rest: str = "SYS") -> NodeDescriptor:
    pairs = dict.fromkeys(combinations(range(count), 2), rest) | kinds
    return NodeDescriptor(
        node="n",
        generation=1,
        observed_at=datetime(2026, 1, 2, tzinfo=UTC),
        host=HostCapacity(allocatable_milli_cpu=1000, allocatable_memory_bytes=2**30),
        devices=tuple(
            Device(index=n, uuid=f"GPU-{n}", kind=DeviceKind.GPU, model="GPU", compute_capability=capability)
            for n in range(count)
        ),
        links=tuple(DeviceLink(first=a, second=b, kind=kind) for (a, b), kind in pairs.items() if kind),
    )


@pytest.mark.parametrize(
    ("descriptor", "island", "rate"),
    [
        (node(8, "9.0", {}, rest="NV18"), 8, 450 * GIGA),
        (node(4, "9.0", {}, rest="NV6"), 4, 450 * GIGA),
        (node(4, "8.0", {(0, 1): "NV12"}, rest="NODE"), 1, None),
        (node(4, "8.0", {(0, 1): "NV12", (2, 3): "NV12"}), 2, 300 * GIGA),
        (node(8, "7.0", CUBE_MESH), 4, 100 * GIGA),
        (node(8, "8.9", {}), 1, None),
        (node(4, "8.0", {(0, 1): "PIX", (2, 3): "PXB"}), 2, 24 * GIGA),
        (node(4, "10.0", {}, rest="NV18"), 4, 900 * GIGA),
        (node(2, None, {}, rest="NV4"), 2, 80 * GIGA),
    ],
    ids=["switch", "mesh of four", "one bridge", "two bridges", "cube mesh", "no links", "pcie", "gb200", "unknown"],
)
def test_an_island_is_a_block_whose_every_pair_is_linked(
    descriptor: NodeDescriptor, island: int, rate: int | None
) -> None:
    found = fabric_of(descriptor)
    assert found is not None
    assert (found.island, found.island_bytes_per_second) == (island, rate)
    assert found.nics is None


def test_a_card_that_cannot_be_read_breaks_no_island() -> None:
    lost = {(n, 3) if n < 3 else (3, n): "" for n in range(8) if n != 3}
    assert fabric_of(node(8, "9.0", lost, rest="NV18")) == fabric_of(node(8, "9.0", {}, rest="NV18"))


def test_nothing_is_said_of_a_node_without_links() -> None:
    assert fabric_of(node(8, "9.0", {}, rest="")) is None


def test_the_shape_of_the_recorded_node_of_eight_has_its_fabric() -> None:
    reading = NvmlDriver(lambda: FakeNvml(load("h100x8.json"))).discover()
    devices = tuple(
        Device(
            index=device.index,
            uuid=device.uuid,
            kind=device.kind,
            model=device.model,
            memory_bytes=device.memory_bytes or 0,
            compute_capability=device.compute_capability,
        )
        for device in reading.devices
    )
    described = node(8, None, {}).replace(devices=devices, links=reading.links)
    (shape,) = shapes(ResourcePoolSpec(device_type=DeviceKind.GPU), [described, described.replace(node="m")])
    assert shape.nodes == 2
    assert shape.fabric == Fabric(island=8, island_bytes_per_second=450 * GIGA, host_bytes_per_second=48 * GIGA)


def test_shapes_without_links_say_nothing_of_a_fabric() -> None:
    (shape,) = shapes(ResourcePoolSpec(device_type=DeviceKind.GPU), [node(2, "9.0", {}, rest="")])
    assert shape.fabric is None
    assert "fabric" not in shape.wire()
