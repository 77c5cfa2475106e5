"""CPUs and memory from files as Linux writes them, and from this machine."""

import os
from pathlib import Path

import pytest

from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_operator.layers.resource.cpu_driver import CpuDriver
from kuangchao_operator.layers.resource.local import describe_host

GIB = 2**30
CPUINFO = "".join(
    f"processor\t: {n}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654\nphysical id\t: {n // 2}\n\n"
    for n in range(4)
)


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/cpuinfo", CPUINFO)
        self.write("proc/meminfo", f"MemTotal:       {16 * 2**20} kB\nMemFree:  1 kB\n")
        self.write("proc/self/cgroup", "0::/\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limits(self, cpus: int = 4) -> tuple[int, int]:
        host = CpuDriver(self.root, lambda: cpus).host()
        return host.allocatable_milli_cpu, host.allocatable_memory_bytes


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_one_device_for_each_package(machine: Machine) -> None:
    devices = CpuDriver(machine.root).discover().devices
    assert [(d.index, d.uuid, d.kind, d.model) for d in devices] == [
        (0, "cpu-0", DeviceKind.CPU, "AMD EPYC 9654"),
        (1, "cpu-1", DeviceKind.CPU, "AMD EPYC 9654"),
    ]


def test_a_machine_that_names_no_model_is_one_package(machine: Machine) -> None:
    machine.write("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n\nHardware\t: Board\n")
    assert [(d.uuid, d.model) for d in CpuDriver(machine.root).discover().devices] == [("cpu-0", "cpu")]


def test_without_limits_affinity_and_memory_count(machine: Machine) -> None:
    assert machine.limits(cpus=3) == (3000, 16 * GIB)


def test_limits_of_cgroups_version_2_bind(machine: Machine) -> None:
    machine.write("sys/fs/cgroup/cpu.max", "150000 100000\n")
    machine.write("sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    assert machine.limits() == (1500, 2 * GIB)


def test_the_tightest_ancestor_binds_and_max_is_no_limit(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/kubepods/pod1/main\n")
    machine.write("sys/fs/cgroup/kubepods/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/kubepods/pod1/cpu.max", "200000 100000\n")
    machine.write("sys/fs/cgroup/kubepods/pod1/main/cpu.max", "300000 100000\n")
    machine.write("sys/fs/cgroup/kubepods/pod1/main/memory.max", "max\n")
    machine.write("sys/fs/cgroup/kubepods/memory.max", f"{3 * GIB}\n")
    assert machine.limits() == (2000, 3 * GIB)


def test_limits_of_cgroups_version_1_bind_each_by_its_own_controller(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/c\n1:name=systemd:/\n")
    machine.write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", f"{GIB}\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n")
    machine.write("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert machine.limits() == (500, GIB)


def test_this_machine_is_described_truthfully() -> None:
    descriptor = describe_host("here")
    assert (descriptor.node, descriptor.generation) == ("here", 1)
    assert 0 < descriptor.host.allocatable_milli_cpu <= len(os.sched_getaffinity(0)) * 1000
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < descriptor.host.allocatable_memory_bytes <= pages + 2**20
    assert descriptor.devices
    assert describe_host("here").content_digest() == descriptor.content_digest()
