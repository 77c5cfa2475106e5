"""The figures of one kind of device as a kernel sees them: seconds for a matrix product, attention, a pass over memory.

Pure. Floats, but only + - * / and comparisons: IEEE 754 fixes their results on every machine.
"""

from functools import lru_cache

from kuangchao_contracts.plan import Precision
from kuangchao_operator.layers.strategy.timing.hardware import Hardware
from kuangchao_operator.layers.strategy.timing.machine import Links, Machine

ELEMENT = {Precision.FP32: 4}
"""Bytes of an activation; 2 in every other format: fp8 is for matrix products only."""


class Clock:
    """One machine with one release's figures. Immutable; equal only to itself."""

    def __init__(self, machine: Machine, hardware: Hardware) -> None:
        kind, curves = hardware.accelerators[machine.accelerator], hardware.curves
        self.kind, self.curves, self.hardware = kind, curves, hardware
        self.links = Links(machine, hardware)
        self.start = curves.collective_ns / 1e9
        self._memory = kind.memory_bytes_per_second * curves.memory_permille / 1000
        self._kernel = curves.kernel_ns / 1e9
        self._tiles = curves.tile * kind.units
        self._lost = curves.wave_permille / 1000
        self._depth = curves.depth
        self._rate = {p: kind.peak(p) * kind.sustained_permille / 1000 for p in Precision}
        self._attention = {p: kind.peak(p) * kind.attention_permille / 1000 for p in Precision}
        self._attention[Precision.FP8] = self._attention[Precision.BF16]

    def matmul(self, rows: float, columns: float, inner: float, precision: Precision) -> float:
        """A product of rows x inner and inner x columns.

        The tiles of the result are computed in waves, the last of which is partly empty, and each tile fills and
        drains its pipeline once: efficiency falls smoothly as the result or the inner width becomes small.
        """
        waves = rows * columns / self._tiles
        share = waves / (waves + self._lost) * inner / (inner + self._depth)
        busy = 2 * rows * columns * inner / (self._rate[precision] * share)
        moved = (rows * inner + inner * columns + rows * columns) * element(precision) / self._memory
        return self._kernel + max(busy, moved)

    def attention(self, operations: float, precision: Precision) -> float:
        """A fused kernel over causal attention: half of the scores are never computed."""
        return self._kernel + operations / 2 / self._attention[precision]

    def passes(self, number: int, elements: float, precision: Precision) -> float:
        """Reading or writing so many elements so often."""
        return number * (self._kernel / 2 + elements * element(precision) / self._memory)

    def moved(self, size: float) -> float:
        """Reading or writing so many bytes."""
        return size / self._memory


def element(precision: Precision) -> int:
    """Bytes of an activation."""
    return ELEMENT.get(precision, 2)


@lru_cache(maxsize=16)
def clock_of(machine: Machine, hardware: Hardware) -> Clock:
    """The clock of a machine; the last few are remembered with all that was timed on them."""
    return Clock(machine, hardware)
