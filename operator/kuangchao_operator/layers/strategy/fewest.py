"""The fewest devices that a job fits, as far as a bounded number of tries can tell. Pure.

Whether a job fits need not rise steadily with its devices, since batch, heads and layers must come out even: so it says
the fewest of those tried, never the fewest of all, unless all were tried.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kuangchao_operator.layers.strategy.numbers import divisors

MOST_TRIED: Final = 64
"""Up to so many numbers of pods all are tried, from one upwards."""
BETWEEN: Final = 32
"""Numbers tried between the first that fits and the last before it."""


def fewest(devices: int, per_pod: int, fits: Callable[[int], bool]) -> int:
    """The fewest devices, in whole pods and below `devices`, of those tried that fit; `devices` if none does."""
    every = range(per_pod, devices, per_pod)
    if len(every) <= MOST_TRIED:
        return _first(every, fits, devices)
    tried = [*_rough(devices, per_pod), devices]
    found = _first(tried[:-1], fits, devices)
    place = tried.index(found)
    below = tried[place - 1] if place else 0
    step = max(1, -(-(found - below) // (per_pod * (BETWEEN + 1)))) * per_pod
    return _first(range(below + step, found, step), fits, found)


def _first(counts: Sequence[int], fits: Callable[[int], bool], otherwise: int) -> int:
    return next((count for count in counts if fits(count)), otherwise)


def _rough(devices: int, per_pod: int) -> list[int]:
    """Pods doubled, and whole parts of the devices asked for: what divides them divides what they divide."""
    doubled = {per_pod << number for number in range((devices // per_pod).bit_length())}
    parts = {count for count in divisors(devices) if count % per_pod == 0}
    return sorted(count for count in doubled | parts if count < devices)
