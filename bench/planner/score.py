"""What the model says of each row, and how far that is from what was measured. Pure."""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bench.planner.models import UnsupportedRowError
from bench.planner.rows import Row
from bench.planner.settings import settings_of
from bench.planner.sources import Figure, source_of
from bench.planner.steps import step_summary
from bench.planner.timing import Timed, timed
from kuangchao_operator.layers.strategy.footprint.budget import judge
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.layout import ImpossibleLayoutError
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, peaks
from kuangchao_operator.layers.strategy.legality import contradiction
from kuangchao_operator.layers.strategy.timing.hardware import Hardware

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer for a row."""

    row: Row
    stages: tuple[Peak, ...]
    feasible: bool | None
    reason: str
    step: Timed | None = None

    @property
    def allocated(self) -> float | None:
        """Peak over the stages, GiB."""
        return max(s.allocated_bytes for s in self.stages) / GIB if self.stages else None

    @property
    def last(self) -> float | None:
        """Peak of the last stage, GiB."""
        return self.stages[-1].allocated_bytes / GIB if self.stages else None

    @property
    def reserved(self) -> float | None:
        """The most that the allocator takes, over the stages, GiB."""
        return max(s.reserved_bytes for s in self.stages) / GIB if self.stages else None

    def figure(self) -> float | None:
        """The one of these that the row's source states."""
        match source_of(self.row).figure:
            case Figure.LAST_STAGE:
                return self.last
            case Figure.RESERVED:
                return self.reserved
            case _:
                return self.allocated

    def error(self) -> float | None:
        """Relative error against the row's peak; None where one of them is missing, and no process has a peak of 0."""
        peak, figure = self.row.real("peak_mem_gib"), self.figure()
        return None if not peak or figure is None else figure / peak - 1

    def record(self) -> dict[str, Any]:
        """For the JSON output."""
        return {
            "id": self.row.id,
            "allocatedGiB": _rounded(self.allocated),
            "lastStageAllocatedGiB": _rounded(self.last),
            "reservedGiB": _rounded(self.reserved),
            "stepSeconds": None if self.step is None else round(self.step.seconds, 6),
            "feasible": self.feasible,
            "reason": self.reason,
        }


def answer(row: Row, calibration: Calibration, hardware: Hardware | None = None) -> Answer:
    """The answer for one row; a row that cannot be estimated has no figures and a reason.

    Without `hardware` there are no step times.
    """
    try:
        settings = settings_of(row)
        tried = [peaks(setting, calibration) for setting in settings]
    except (UnsupportedRowError, ImpossibleLayoutError) as error:
        return Answer(row=row, stages=(), feasible=None, reason=f"unsupported: {error}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Answer(row=row, stages=(), feasible=None, reason=f"unsupported: {where}: {first['msg']}")
    broken = contradiction(settings[0], row.whole("gpus"))
    if broken is not None:
        return Answer(row=row, stages=tried[0], feasible=False, reason=broken.message)
    chosen, feasible, reason = _fitting(row, tried, calibration)
    step = None if hardware is None else timed(row, settings[chosen], hardware)
    return Answer(row=row, stages=tried[chosen], feasible=feasible, reason=reason, step=step)


def _fitting(row: Row, tried: list[tuple[Peak, ...]], calibration: Calibration) -> tuple[int, bool, str]:
    """The first of the settings that fits, else the first; whether it fits; why."""
    memory = _device_bytes(row)
    if memory is None:
        return 0, True, "no device memory stated: nothing to exceed"
    verdicts = [judge(stages, memory, calibration) for stages in tried]
    found = next((number for number, verdict in enumerate(verdicts) if verdict.fits), 0)
    return found, verdicts[found].fits, verdicts[found].reason


def summary(answers: list[Answer]) -> dict[str, Any]:
    """Errors by kind of figure, and what was wrongly called feasible or not."""
    fitting = [a for a in answers if a.row.text("outcome") == "ok"]
    failing = [a for a in answers if a.row.text("outcome").startswith("oom")]
    groups: dict[str, list[float]] = defaultdict(list)
    for one in answers:
        error = one.error()
        if error is not None:
            groups[source_of(one.row).figure.value].append(error)
    return {
        "rows": len(answers),
        "unsupported": [a.row.id for a in answers if a.feasible is None],
        **step_summary([(a.row, a.step) for a in answers if a.step is not None]),
        "memory": {kind: _errors(errors) for kind, errors in sorted(groups.items())},
        "feasibility": {
            "oomRows": len(failing),
            "oomCalledFeasible": [a.row.id for a in failing if a.feasible],
            "fittingRows": len(fitting),
            "fittingCalledInfeasible": [a.row.id for a in fitting if a.feasible is False],
            "fittingMissedShare": _rounded(_share([not a.feasible for a in fitting])),
        },
    }


def _errors(errors: list[float]) -> dict[str, Any]:
    sizes = [abs(error) for error in errors]
    return {
        "rows": len(errors),
        "meanAbsolute": _rounded(statistics.fmean(sizes)),
        "median": _rounded(statistics.median(sizes)),
        "worst": _rounded(max(sizes)),
        "within5Percent": sum(size <= 0.05 for size in sizes),
        "within10Percent": sum(size <= 0.10 for size in sizes),
        "within20Percent": sum(size <= 0.20 for size in sizes),
    }


def _share(hits: list[bool]) -> float:
    return sum(hits) / len(hits) if hits else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _device_bytes(row: Row) -> int | None:
    size = row.real("gpu_mem_gb")
    return None if size is None else int(size * GIB)
