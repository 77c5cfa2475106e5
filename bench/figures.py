"""What a measurement comes to: figures with their targets, and the arithmetic that makes them. Pure."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Bound(StrEnum):
    """On which side of the target the value must lie."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Figure:
    """One number as it came out. Without a target it is for information only."""

    group: str
    name: str
    value: float
    unit: str = ""
    bound: Bound = Bound.AT_MOST
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one. A value that is no number meets nothing."""
        if self.target is None:
            return None
        return self.value <= self.target if self.bound is Bound.AT_MOST else self.value >= self.target

    @property
    def wanted(self) -> str:
        """The target as text."""
        return "" if self.target is None else f"{self.bound.value} {text(self.target)} {self.unit}".rstrip()

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class Side:
    """One run of one side."""

    rate: float
    """Steps per second."""
    cpu: float
    """CPU seconds of a rank per step."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring runs, one of each side."""

    ours: Side
    theirs: Side


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank: the smallest value with at least `percent` of all values at or below it, so always one of them."""
    ordered = sorted(values)
    if not ordered or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} of {len(ordered)} values")
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def ratio(pairs: Sequence[Pair]) -> float:
    """Median of the ratios of neighbouring rates: what slows the machine for both leaves it alone."""
    return statistics.median(pair.ours.rate / pair.theirs.rate for pair in pairs)


def cost_microseconds(pairs: Sequence[Pair]) -> float:
    """Median of what a step takes longer with us; negative where it is shorter."""
    return statistics.median(1e6 / pair.ours.rate - 1e6 / pair.theirs.rate for pair in pairs)


def cpu_cost_microseconds(pairs: Sequence[Pair]) -> float:
    """Median of the CPU time that a rank's step takes more with us."""
    return statistics.median(1e6 * (pair.ours.cpu - pair.theirs.cpu) for pair in pairs)


def spread(pairs: Sequence[Pair]) -> str:
    """Lowest and highest ratio, so that a reader sees how far to trust the median."""
    ratios = [pair.ours.rate / pair.theirs.rate for pair in pairs]
    return f"{len(ratios)} pairs, {min(ratios):.3f} to {max(ratios):.3f}"


def per_minute(count: float, seconds: float) -> float:
    """A count over a window as a rate."""
    return count * 60 / seconds


def text(value: float) -> str:
    """A number for people: four significant digits, integers as they are."""
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"
