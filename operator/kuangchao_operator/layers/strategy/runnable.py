"""What the workers of this release run, and so what a plan that is not hypothetical may use. Pure."""

from collections.abc import Callable
from typing import Any, Final

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Parallelism, PlanRequest, Recompute, Sharding

RUNNABLE: Final = ("data", "microBatch")
"""Members of `parallelism` that the worker carries out at any value for any task."""

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

PINNED: Final[dict[str, Callable[[Any], bool]]] = {
    "tensor": lambda _: True,
    "sequence": lambda _: True,
    "pipeline": lambda _: True,
    "stageLayers": lambda _: True,
    "schedule": lambda value: value in (Schedule.ONE_F_ONE_B, Schedule.GPIPE),
    "sharding": lambda value: value in (Sharding.NONE, Sharding.FULL),
}
"""Members that the worker carries out at these values where the job pins them: whether the task has the rules that they
need is in the task and in no request."""
FOLLOWS: Final = {"pipeline": "stageLayers", "tensor": "sequence"}
"""What is the planner's to choose once the other is pinned."""

NOT_BUILT: Final = "not built in the worker yet"
ON_REQUEST: Final = "used only where the job pins it, since the task must have rules for it"
LAYOUT_ONLY: Final = "a command lays out its own processes: only data parallel"


def given(parallelism: Parallelism) -> dict[str, Any]:
    """The members that the user gave a value, by wire name; mode and objective are no axes."""
    fields = type(parallelism).model_fields.items()
    values = {field.alias or name: getattr(parallelism, name) for name, field in fields}
    return {name: v for name, v in values.items() if v is not None and name not in ("mode", "objective")}


def open_axes(request: PlanRequest) -> frozenset[str]:
    """Axes whose value is the planner's to choose, or the user's to pin."""
    if not request.managed:
        return frozenset(RUNNABLE)
    if request.what_if:
        return frozenset((*NEUTRAL, *RUNNABLE))
    wish = given(request.parallelism)
    pinned = {name for name, carried_out in PINNED.items() if name in wish and carried_out(wish[name])}
    return frozenset((*RUNNABLE, *pinned, *(other for name, other in FOLLOWS.items() if name in pinned)))


def closed_reason(request: PlanRequest, name: str = "") -> str:
    """Why an axis is not used that is not open; without a name, why one that was asked for is not."""
    if not request.managed:
        return LAYOUT_ONLY
    return ON_REQUEST if name in PINNED else NOT_BUILT
