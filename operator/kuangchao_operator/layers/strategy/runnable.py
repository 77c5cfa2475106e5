"""What the workers of this release run, and so what a plan that is not hypothetical may use. Pure."""

from typing import Final

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import PlanRequest, Recompute, Sharding

RUNNABLE: Final = ("data", "microBatch")
"""Members of `parallelism` that the worker carries out at any value; every other one only at its neutral value."""

NEUTRAL: Final[dict[str, object]] = {
    "tensor": 1,
    "pipeline": 1,
    "context": 1,
    "expert": 1,
    "virtualStages": 1,
    "sequence": False,
    "recompute": Recompute.NONE,
    "sharding": Sharding.NONE,
    "schedule": Schedule.ONE_F_ONE_B,
    "stageLayers": (),
}
"""The value of each axis with which it does nothing."""

NOT_BUILT: Final = "not built in the worker yet: only data parallel"
LAYOUT_ONLY: Final = "a command lays out its own processes: only data parallel"


def open_axes(request: PlanRequest) -> frozenset[str]:
    """Axes whose value is the planner's to choose, or the user's to pin."""
    if request.what_if and request.managed:
        return frozenset((*NEUTRAL, *RUNNABLE))
    return frozenset(RUNNABLE)


def closed_reason(request: PlanRequest) -> str:
    """Why every other axis is not used."""
    return NOT_BUILT if request.managed else LAYOUT_ONLY
