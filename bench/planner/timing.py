"""How long the model says a row's step takes, and how long it took. Pure.

What a row says of its step is, in order of preference: seconds; tokens a second for each device; the share of the
peak, or operations a second for each device, by the count of its source, which agrees with ours (no halving of causal
attention).
"""

import re
from dataclasses import dataclass, replace

from bench.planner.rows import Row
from kuangchao_contracts.fabric import Fabric
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing.flops import operations
from kuangchao_operator.layers.strategy.timing.hardware import Hardware
from kuangchao_operator.layers.strategy.timing.machine import Machine
from kuangchao_operator.layers.strategy.timing.step import StepTime, step_time

GIB = 2**30
USUAL_NODE = 8
TRAY = 4
"""Devices of a compute tray in racks with one switch."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A step of a row in seconds; `measured` is None where the row states nothing of it."""

    time: StepTime
    measured: float | None

    @property
    def seconds(self) -> float:
        """What the model says."""
        return self.time.step_us / 1e6

    @property
    def impossible(self) -> bool:
        """Whether the model's operations in the stated time would take more than the peak of the devices."""
        return self.measured is not None and self.time.mfu_ppm * self.seconds > 1e6 * self.measured

    @property
    def error(self) -> float | None:
        """Relative error; None where nothing is stated, or nothing that can be."""
        return None if self.measured is None or self.impossible else self.seconds / self.measured - 1


def timed(row: Row, setting: Setting, hardware: Hardware) -> Timed | None:
    """The row's step; None where its device is not known. Whoever leaves a size open reports his fastest."""
    machine = machine_of_row(row, setting, hardware)
    if machine is None:
        return None
    found = min(step_time(one, machine, hardware) for one in _micro_batches(row, setting))
    return Timed(found, measured_seconds(row, setting, machine, hardware))


def machine_of_row(row: Row, setting: Setting, hardware: Hardware) -> Machine | None:
    """Usual nodes of the row's devices; the network as its notes state it."""
    name = hardware.accelerator_of(row.text("gpu"), int((row.real("gpu_mem_gb") or 0) * GIB))
    if name is None:
        return None
    usual = TRAY if hardware.accelerators[name].island_spans_nodes else USUAL_NODE
    per_node = min(usual, setting.layout.world)
    return Machine(name, per_node, -(-setting.layout.world // per_node), _fabric(row, name, hardware, per_node))


def _fabric(row: Row, name: str, hardware: Hardware, per_node: int) -> Fabric | None:
    stated = re.search(r"(\d+) gb/s inter-node", row.notes)
    if not stated:
        return None
    kind = hardware.accelerators[name]
    rate = int(stated.group(1)) * 10**9 // 8
    return Fabric(island=min(kind.island, per_node), nics=1, nic_bytes_per_second=rate)


def measured_seconds(row: Row, setting: Setting, machine: Machine, hardware: Hardware) -> float | None:
    """What the row says that its step took."""
    step, devices = row.real("step_s"), setting.layout.world
    if step:
        return step
    batch = setting.micro_batch * setting.micro_batches * setting.layout.data
    rate = row.real("tok_s_gpu")
    if rate:
        return batch * setting.sequence_length / (rate * devices)
    share, speed = row.real("mfu_pct"), row.real("tflops_gpu")
    if share:
        speed = share / 100 * hardware.accelerators[machine.accelerator].peak(setting.precision) / 1e12
    return operations(setting).model / (speed * 1e12 * devices) if speed else None


def _micro_batches(row: Row, setting: Setting) -> tuple[Setting, ...]:
    """Sizes of micro-batch that a row may have meant."""
    if row.whole("mbs") is not None:
        return (setting,)
    samples = setting.micro_batch * setting.micro_batches
    sizes = (size for size in (1, 2, 4, 8, 16) if samples % size == 0)
    return tuple(replace(setting, micro_batch=size, micro_batches=samples // size) for size in sizes)
