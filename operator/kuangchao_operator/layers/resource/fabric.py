"""How the GPUs of a node reach each other, from the links that its agent found. Pure; promises the least it may.

What the links do not show is left open: network adapters, and switches that join several nodes. Nothing is guessed
from a device's index alone: an island is a block of neighbours whose every pair is linked.
"""

import re
from typing import Final, NamedTuple

from kuangchao_contracts.descriptor import Device, DeviceKind, NodeDescriptor
from kuangchao_contracts.fabric import Fabric

_SWITCHED_PCIE: Final = ("PIX", "PXB")
"""Below one host bridge: traffic does not cross a processor."""
GIGA: Final = 10**9


class _Generation(NamedTuple):
    """Links of a generation of GPUs, by the first number of its compute capability (datasheets)."""

    nvlinks: int
    """At most, of one device."""
    nvlink: int
    """Bytes per second of one link in one direction."""
    pcie: int
    """What 16 lanes carry in one direction."""


_GENERATIONS: Final = {
    6: _Generation(4, 20 * GIGA, 12 * GIGA),
    7: _Generation(6, 25 * GIGA, 12 * GIGA),
    8: _Generation(12, 25 * GIGA, 24 * GIGA),
    9: _Generation(18, 25 * GIGA, 48 * GIGA),
    10: _Generation(18, 50 * GIGA, 48 * GIGA),
}
_OLDEST: Final = _GENERATIONS[6]


def fabric_of(descriptor: NodeDescriptor) -> Fabric | None:
    """The fabric of a node with GPUs; None where no links are known."""
    gpus = sorted((d for d in descriptor.devices if d.kind is DeviceKind.GPU), key=lambda device: device.index)
    links = {(link.first, link.second): link.kind for link in descriptor.links}
    links |= {(second, first): kind for (first, second), kind in links.items()}
    if not links:
        return None
    generation = _generation(gpus)
    for size in (n for n in range(len(gpus), 1, -1) if len(gpus) % n == 0):
        rate = _rate([gpus[start : start + size] for start in range(0, len(gpus), size)], links, generation)
        if rate is not None:
            return Fabric(island=size, island_bytes_per_second=rate, host_bytes_per_second=generation.pcie)
    return Fabric(host_bytes_per_second=generation.pcie)


def _generation(gpus: list[Device]) -> _Generation:
    """The oldest one of the node; the oldest of all where none is told."""
    majors = [int(found[0]) for gpu in gpus if (found := re.match(r"\d+", gpu.compute_capability or ""))]
    known = [_GENERATIONS[min(max(major, 6), max(_GENERATIONS))] for major in majors]
    return min(known, default=_OLDEST)


def _rate(blocks: list[list[Device]], links: dict[tuple[int, int], str], generation: _Generation) -> int | None:
    """Bytes per second of a device towards its block, the least over all; None where a pair has no link of its own.

    A device without any link is one that cannot be read just now: it breaks no island.
    """
    seen = {index for pair in links for index in pair}
    rates = []
    for block in blocks:
        members = [device.index for device in block if device.index in seen]
        for one in members:
            kinds = [links.get((one, other), "") for other in members if other != one]
            if not all(map(_near, kinds)):
                return None
            rates += [_device_rate(kinds, generation)] if kinds else []
    return min(rates, default=None)


def _near(kind: str) -> bool:
    return _nvlinks(kind) > 0 or kind in _SWITCHED_PCIE


def _nvlinks(kind: str) -> int:
    found = re.fullmatch(r"NV(\d+)", kind)
    return int(found[1]) if found else 0


def _device_rate(kinds: list[str], generation: _Generation) -> int:
    """Links to several peers add up, unless they are more than the device has: then they are the ones to a switch."""
    counts = [_nvlinks(kind) for kind in kinds]
    if min(counts) == 0:
        return generation.pcie
    wired = sum(counts)
    return generation.nvlink * (wired if wired <= generation.nvlinks else min(counts))
