"""A measured run: its setting, and which figure of which stage was read. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, peaks
from kuangchao_operator.layers.strategy.footprint.setting import Setting


class Figure(StrEnum):
    """Which memory was read."""

    ALLOCATED = "allocated"
    """In use by tensors: torch.cuda.max_memory_allocated."""
    RESERVED = "reserved"
    """Taken by the allocator: torch.cuda.max_memory_reserved."""
    DEVICE = "device"
    """All of the process on the device: nvidia-smi."""


FULLEST, LAST = "fullest", "last"


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. `stage` is "fullest", "last" or a number."""

    name: str
    group: str
    """Runs of one group are held out together: they are alike in what a model of memory could have learned by heart."""
    setting: Setting
    measured: int
    """Bytes."""
    figure: Figure = Figure.ALLOCATED
    stage: str = FULLEST


def estimate(run: Run, calibration: Calibration) -> int:
    """What the footprint says for the figure that was read, in bytes.

    Raises ImpossibleLayoutError where the layers cannot be cut so, and IndexError for a stage that is not there.
    """
    stages = peaks(run.setting, calibration)
    if run.stage == FULLEST:
        return max(_figure(stage, run.figure) for stage in stages)
    return _figure(stages[-1 if run.stage == LAST else int(run.stage)], run.figure)


def _figure(peak: Peak, figure: Figure) -> int:
    match figure:
        case Figure.ALLOCATED:
            return peak.allocated_bytes
        case Figure.RESERVED:
            return peak.reserved_bytes
        case Figure.DEVICE:
            return peak.device_bytes
