"""Whether a setting fits a device, and by which stage it does not. Pure."""

from typing import NamedTuple

from kuangchao_contracts.units import human_bytes, least_bytes, most_bytes
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.peaks import Peak


class Verdict(NamedTuple):
    """The answer and its reason in one line."""

    fits: bool
    reason: str


def usable_bytes(memory_bytes: int, calibration: Calibration) -> int:
    """What a process can have of a device's nominal memory."""
    return memory_bytes * calibration.visible_permille // 1000


def spared_bytes(memory_bytes: int, backend: str, calibration: Calibration) -> int:
    """What a rank may count on: what a process can have, less what others beside it may take."""
    spare = calibration.backends[backend].spare_permille
    return memory_bytes * (calibration.visible_permille - spare) // 1000


def device_bytes_for(needed: int, backend: str, calibration: Calibration) -> int:
    """Memory of the smallest device on which a rank may count on `needed` bytes."""
    share = calibration.visible_permille - calibration.backends[backend].spare_permille
    return -(-needed * 1000 // share)


def judge(stages: tuple[Peak, ...], memory_bytes: int, calibration: Calibration) -> Verdict:
    """The fullest stage against the device."""
    worst = max(stages, key=lambda peak: (peak.device_bytes, -peak.number))
    usable = usable_bytes(memory_bytes, calibration)
    fits = worst.device_bytes <= usable
    sign, needed, there = ("<=", human_bytes, human_bytes) if fits else (">", least_bytes, most_bytes)
    return Verdict(
        fits=fits,
        reason=f"stage {worst.number} needs {needed(worst.device_bytes)} {sign} {there(usable)} usable",
    )
