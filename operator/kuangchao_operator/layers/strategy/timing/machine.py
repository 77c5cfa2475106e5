"""The devices that a plan is timed on, and how ranks that stand `stride` apart reach each other. Pure.

Ranks are laid out node after node, so a group whose ranks stand s apart has per_node / s of them on each node.
"""

from typing import Final, NamedTuple

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.plan import DeviceShape
from kuangchao_operator.layers.strategy.timing.hardware import Accelerator, Hardware

CPU: Final = "cpu"


class Machine(NamedTuple):
    """Equal nodes: the key of their kind of device, and their links as far as they are known."""

    accelerator: str
    per_node: int
    nodes: int
    fabric: Fabric | None = None


class Reach(NamedTuple):
    """Links of a group of ranks: `local` of them share an island, and `away` islands or nodes take part.

    Bandwidths are bytes per second in one direction for one member while all groups of the kind are at work, which
    share what their node has; latencies are seconds.
    """

    size: int
    local: int
    away: int
    near: float
    far: float
    near_latency: float
    far_latency: float


class Links:
    """The links of a machine, what is not known filled in with what is usual for its kind of device."""

    def __init__(self, machine: Machine, hardware: Hardware) -> None:
        kind, curves = hardware.accelerators[machine.accelerator], hardware.curves
        fabric = machine.fabric or Fabric()
        nics, nic = fabric.nics or kind.nics, fabric.nic_bytes_per_second or kind.nic_bytes_per_second
        share = curves.nic_permille * (1000 if fabric.rail_optimised else curves.unrailed_permille)
        self._per_node = machine.per_node
        self._island = joined(machine, kind)
        self._near = (fabric.island_bytes_per_second or kind.island_bytes_per_second) * curves.island_permille / 1000
        self._host = (fabric.host_bytes_per_second or kind.host_bytes_per_second) * curves.host_permille / 1000
        self._network = nics * nic / machine.per_node * share / 1e6
        self._near_latency = _seconds(fabric.island_latency_ns, curves.island_latency_ns)
        self._network_latency = _seconds(fabric.nic_latency_ns, curves.nic_latency_ns)
        self._found: dict[tuple[int, int], Reach] = {}

    def reach(self, size: int, stride: int) -> Reach:
        """Links of a group of `size` ranks that stand `stride` apart."""
        found = self._found.get((size, stride))
        if found is None:
            found = self._found[size, stride] = self._reach(size, stride)
        return found

    def _reach(self, size: int, stride: int) -> Reach:
        local = min(size, max(1, self._island // stride))
        inside = size * stride <= self._per_node
        return Reach(
            size=size,
            local=local,
            away=-(-size // local),
            near=self._near,
            far=self._host if inside else self._network,
            near_latency=self._near_latency,
            far_latency=self._near_latency if inside else self._network_latency,
        )


def joined(machine: Machine, kind: Accelerator) -> int:
    """Ranks in a row that fast links join: as its fabric says, or else as is usual for its kind of device.

    A fabric is found from inside a node and ends there: where the kind's switch spans nodes and a node is one island,
    the island is the rack's. Nodes are taken to fill racks in turn.
    """
    usual = kind.island if kind.island_spans_nodes else min(kind.island, machine.per_node)
    if machine.fabric is None:
        return usual
    whole = machine.fabric.island >= max(2, machine.per_node)
    return max(machine.fabric.island, usual) if kind.island_spans_nodes and whole else machine.fabric.island


def machine_of(shape: DeviceShape, hardware: Hardware) -> Machine | None:
    """The machine that a pool's shape describes; None where the kind of device is not known."""
    name = CPU if shape.kind == "cpu" else hardware.accelerator_of(shape.model, shape.memory_bytes)
    if name is None or name not in hardware.accelerators:
        return None
    return Machine(name, shape.per_node, shape.nodes, shape.fabric)


def _seconds(known: int | None, usual: int) -> float:
    return (usual if known is None else known) / 1e9
