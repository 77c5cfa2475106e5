"""Which links a group of ranks has, by its size and stride; and what machine a pool's shape is."""

import pytest
from tests.unit.strategy.timing.machines import GIGA, HARDWARE, machine

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.plan import DeviceShape
from kuangchao_operator.layers.strategy.timing.machine import Links, Machine, machine_of
from kuangchao_operator.layers.strategy.timing.shipped import load

GIB = 2**30


@pytest.mark.parametrize(
    ("size", "stride", "local", "away"),
    [
        (8, 1, 8, 1),
        (4, 2, 4, 1),
        (16, 1, 8, 2),
        (8, 8, 1, 8),
        (16, 4, 2, 8),
        (2, 16, 1, 2),
        (1, 1, 1, 1),
    ],
)
def test_a_group_whose_stride_leaves_the_node_uses_the_network(size: int, stride: int, local: int, away: int) -> None:
    found = Links(machine(), HARDWARE).reach(size, stride)
    assert (found.local, found.away) == (local, away)
    assert found.near == 100 * GIGA
    assert away == 1 or found.far == 10 * GIGA


def test_devices_share_the_adapters_of_their_node() -> None:
    few = Links(machine(fabric=Fabric(island=8, nics=2, nic_bytes_per_second=20 * GIGA)), HARDWARE)
    assert few.reach(2, 8).far == 5 * GIGA
    rails = Fabric(island=8, nics=2, nic_bytes_per_second=20 * GIGA, rail_optimised=False)
    assert Links(machine(fabric=rails), HARDWARE).reach(2, 8).far == 2.5 * GIGA


def test_islands_smaller_than_a_node_meet_over_the_host() -> None:
    pairs = Links(machine(fabric=Fabric(island=2)), HARDWARE)
    assert (pairs.reach(4, 1).local, pairs.reach(4, 1).far) == (2, 10 * GIGA)
    assert pairs.reach(2, 1).away == 1


def test_an_island_may_span_nodes_where_the_fabric_says_so() -> None:
    rack = Links(machine(nodes=18, per_node=4, fabric=Fabric(island=72)), HARDWARE)
    assert rack.reach(16, 1).away == 1
    usual = Links(machine(nodes=18, per_node=4), HARDWARE)
    assert usual.reach(16, 1).away == 4, "an unknown node ends at its last device"


def test_a_rack_with_one_switch_is_one_island_whether_or_not_its_nodes_were_looked_at() -> None:
    """A node sees its own four devices and no further."""
    shape = DeviceShape(kind="gpu", model="NVIDIA GB200", memory_bytes=186 * GIB, per_node=4, nodes=18)
    seen = Fabric(island=4, island_bytes_per_second=900 * GIGA)
    reaches = [
        Links(found, load()).reach(16, 1)
        for fabric in (None, seen)
        if (found := machine_of(shape.replace(fabric=fabric), load())) is not None
    ]
    assert [(reach.local, reach.away) for reach in reaches] == [(16, 1)] * 2
    assert reaches[0] == reaches[1]
    apart = machine_of(shape.replace(fabric=Fabric(island=2)), load())
    assert apart is not None
    assert Links(apart, load()).reach(4, 1).away == 2, "pairs within a node are joined by no switch"


def test_latencies_are_those_of_the_fabric_where_it_states_them() -> None:
    slow = Links(machine(fabric=Fabric(island=8, nic_latency_ns=50_000)), HARDWARE)
    assert slow.reach(2, 8).far_latency == 5e-5
    assert Links(machine(), HARDWARE).reach(2, 8).far_latency == 1e-5


@pytest.mark.parametrize(
    ("model", "gib", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-pcie"),
        ("NVIDIA H100 80GB HBM3", 80, "h100-80"),
        ("NVIDIA H100", 94, "h100-96"),
        ("NVIDIA H100 PCIe", 80, "h100-pcie"),
        ("NVIDIA H200", 141, "h200"),
        ("NVIDIA B200", 0, "b200"),
        ("NVIDIA GB200", 0, "gb200"),
        ("NVIDIA B300 SXM6 AC", 268, "b300"),
        ("Tesla V100-SXM2-32GB", 32, "v100-32"),
        ("NVIDIA L40S", 45, "l40s"),
    ],
)
def test_the_driver_s_name_of_a_device_tells_its_kind(model: str, gib: int, kind: str) -> None:
    shape = DeviceShape(kind="gpu", model=model, memory_bytes=gib * GIB, per_node=8, nodes=2)
    assert machine_of(shape, load()) == Machine(kind, 8, 2, None)


@pytest.mark.parametrize(
    "model", ["NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA GH200 480GB", "NVIDIA H100X", "NVIDIA GRID A100X-10C"]
)
def test_a_slice_and_a_device_with_another_s_name_within_its_own_have_no_machine(model: str) -> None:
    shape = DeviceShape(kind="gpu", model=model, memory_bytes=80 * GIB, per_node=8, nodes=2)
    assert machine_of(shape, load()) is None


def test_a_device_that_is_not_known_has_no_machine_and_a_cpu_has_one() -> None:
    unknown = DeviceShape(kind="gpu", model="Voodoo 2", memory_bytes=GIB, per_node=1, nodes=1)
    assert machine_of(unknown, load()) is None
    cpu = DeviceShape(kind="cpu", model="EPYC", memory_bytes=GIB, per_node=4, nodes=1)
    assert machine_of(cpu, load()) == Machine("cpu", 4, 1, None)
    assert machine_of(cpu, HARDWARE) is None


def test_a_framework_without_figures_for_its_year_has_those_of_every_year() -> None:
    hardware = load()
    assert hardware.software_of("torchtitan-2024") == hardware.software["torchtitan"]
    assert hardware.software_of("megatron-2022") == hardware.software["megatron-2022"] != hardware.software["megatron"]
    assert hardware.software_of("megatron-rl") == hardware.software_of("no such") == hardware.software["default"]


def test_shipped_figures_are_whole() -> None:
    hardware = load()
    figures = [one.wire() | {"source": ""} for one in hardware.software.values()]
    assert all(one not in figures[:number] for number, one in enumerate(figures)), "one entry for equal figures"
    assert all(kind.source for kind in hardware.accelerators.values())
    assert all(one.source for one in hardware.software.values())
    assert {
        "a100-40",
        "a100-80",
        "h100-80",
        "h100-96",
        "h200",
        "b200",
        "v100-32",
        "gb200",
        "b300",
        "l40s",
        "cpu",
    } <= set(hardware.accelerators)
