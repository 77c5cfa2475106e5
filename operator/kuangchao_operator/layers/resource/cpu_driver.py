"""CPUs and memory of this machine as this process may use them: affinity and cgroup limits count, not just the
hardware. Reads /proc and /sys; changes nothing."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from kuangchao_contracts.descriptor import DeviceKind, HostCapacity
from kuangchao_operator.layers.resource.driver import DeviceDriver
from kuangchao_operator.layers.resource.model import DeviceReading, DriverReading

_UNLIMITED_V1 = 1 << 60
"""Version 1 of cgroups says "no limit" with a number near 2**63."""


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0))


class CpuDriver(DeviceDriver):
    """One device for each processor package; how many CPU devices a pool makes of them is the pool's business."""

    def __init__(self, root: Path = Path("/"), cpus: Callable[[], int] = _own_cpus) -> None:
        self._root, self._cpus = root, cpus

    def discover(self) -> DriverReading:
        """Packages with their model names."""
        return DriverReading(
            devices=tuple(
                DeviceReading(index=index, uuid=f"cpu-{package}", kind=DeviceKind.CPU, model=model)
                for index, (package, model) in enumerate(sorted(self._packages().items()))
            )
        )

    def host(self) -> HostCapacity:
        """CPU time and memory that this process can get at most."""
        return HostCapacity(allocatable_milli_cpu=self._milli_cpu(), allocatable_memory_bytes=self._memory())

    def _packages(self) -> dict[int, str]:
        """Model by package. Machines without `physical id` (arm64, some guests) have one package."""
        packages: dict[int, str] = {}
        for block in re.split(r"\n\s*\n", self._read("proc/cpuinfo")):
            pairs = (line.partition(":") for line in block.splitlines())
            fields = {key.strip(): value.strip() for key, _, value in pairs}
            if "processor" in fields:
                packages.setdefault(int(fields.get("physical id", "0")), fields.get("model name", "cpu"))
        return packages or {0: "cpu"}

    def _milli_cpu(self) -> int:
        return min([self._cpus() * 1000, *self._cpu_limits()])

    def _memory(self) -> int:
        match = re.search(r"^MemTotal:\s+(\d+) kB$", self._read("proc/meminfo"), re.MULTILINE)
        total = [int(match[1]) * 1024] if match else []
        return min([*total, *self._memory_limits()], default=0)

    def _cpu_limits(self) -> Iterator[int]:
        for directory in self._cgroups("cpu"):
            quota, _, period = self._read(directory / "cpu.max").strip().partition(" ")
            if quota.isdecimal() and period.isdecimal():
                yield int(quota) * 1000 // int(period)
            quota = self._read(directory / "cpu.cfs_quota_us").strip()
            period = self._read(directory / "cpu.cfs_period_us").strip()
            if quota.isdecimal() and period.isdecimal():
                yield int(quota) * 1000 // int(period)

    def _memory_limits(self) -> Iterator[int]:
        for directory in self._cgroups("memory"):
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = self._read(directory / name).strip()
                if text.isdecimal() and int(text) < _UNLIMITED_V1:
                    yield int(text)

    def _cgroups(self, controller: str) -> Iterator[Path]:
        """Directories of this process's cgroup and its ancestors: the tightest of them binds."""
        for line in self._read("proc/self/cgroup").splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            mount = Path("sys/fs/cgroup") / (controller if names else "")
            own = mount / path.lstrip("/")
            yield own
            yield from (parent for parent in own.parents if parent.is_relative_to(mount))

    def _read(self, path: str | Path) -> str:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:  # not there: another kernel, another cgroup version
            return ""
