"""What the workers of this release run, and so what a plan that is not hypothetical may use. Pure.

Who makes a worker run one more axis, or an axis at one more value, adds it to `CARRIED_OUT`; what needs rules in the
task stands in `NEEDS` too, and what does not run beside something else in `unbuilt`. Nothing else in the planner knows
what is built.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kuangchao_contracts.parallel import IN_ROUNDS, ZERO_BUBBLE, Schedule
from kuangchao_contracts.plan import Parallelism, PlanRequest, Recompute, Sharding
from kuangchao_contracts.rules import TaskRule
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.shown import as_written

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
RUNNABLE: Final = ("data", "microBatch")
"""Members of `parallelism` that anything runs at any value: they leave the model whole on every rank."""

Values = tuple[Any, ...] | None
ANY: Final[Values] = None
CARRIED_OUT: Final[dict[str, Values]] = {
    "tensor": ANY,
    "sequence": ANY,
    "pipeline": ANY,
    "stageLayers": ANY,
    "context": ANY,
    "expert": ANY,
    "virtualStages": ANY,
    "schedule": tuple(one for one in Schedule if one is not Schedule.ZERO_BUBBLE_H2),
    "recompute": ANY,
    "sharding": ANY,
}
"""Axes that the worker carries out, each with the values at which it does."""
UNASKED: Final[dict[str, tuple[Any, ...]]] = {
    "sharding": (Sharding.NONE, Sharding.GRADIENTS, Sharding.FULL),
    "schedule": (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED),
}
"""Of these axes the planner takes no other value unless the job pins it. Sharding `optimizer` would take the place of
plain data parallelism wherever memory is no matter, for an update that is shorter by little. Zero bubble takes every
backward pass apart, which torch cannot do for every model, and says so only in the first step."""
NEEDS: Final[dict[str, TaskRule]] = {
    "tensor": TaskRule.TENSOR,
    "sequence": TaskRule.SEQUENCE,
    "pipeline": TaskRule.PIPELINE,
    "virtualStages": TaskRule.PIPELINE,
    "schedule": TaskRule.PIPELINE,
    "stageLayers": TaskRule.PIPELINE,
    "recompute": TaskRule.PIPELINE,
    "context": TaskRule.CONTEXT,
    "expert": TaskRule.EXPERT,
}
"""Axes for which the task must have rules: used unasked only where the job says that it has them. A chain, which
pipelines are cut from, also says what is recomputed."""

NOT_BUILT: Final = "not built in the worker yet"
LAYOUT_ONLY: Final = "a command lays out its own processes: only data parallel"
PLUGGED: Final = "a plug-in takes gradients whole: only data parallel"


def given(parallelism: Parallelism) -> dict[str, Any]:
    """The members that the user gave a value, by wire name; mode, objective and rules are no axes."""
    fields = type(parallelism).model_fields.items()
    values = {field.alias or name: getattr(parallelism, name) for name, field in fields}
    return {name: v for name, v in values.items() if v is not None and name not in ("mode", "objective", "taskRules")}


def open_axes(request: PlanRequest) -> frozenset[str]:
    """Axes whose value is the planner's to choose, or the user's to pin."""
    if request.what_if and request.managed:
        return frozenset((*NEUTRAL, *RUNNABLE))
    if not request.managed or request.plugged:
        return frozenset(RUNNABLE)
    wish, rules = given(request.parallelism), _rules(request.parallelism)
    opened = (name for name in CARRIED_OUT if _pinned(name, wish) or (name not in wish and _ruled(name, rules)))
    return frozenset((*RUNNABLE, *opened))


def limits(request: PlanRequest) -> Mapping[str, tuple[Any, ...]]:
    """Open axes that the planner may use at some values only, with those."""
    if request.what_if:
        return {}
    wish = given(request.parallelism)
    unasked = {name: values for name, values in UNASKED.items() if name not in wish}
    return {name: values for name, values in CARRIED_OUT.items() if values is not None} | unasked


def closed_reason(request: PlanRequest, name: str = "") -> str:
    """Why an axis is not used that is not open; without a name, why one that was asked for is not."""
    if not request.managed:
        return LAYOUT_ONLY
    if request.plugged:
        return PLUGGED
    needed, pinned = NEEDS.get(name), given(request.parallelism)
    built = name in CARRIED_OUT and (name not in pinned or _pinned(name, pinned))
    return on_request(needed) if built and needed is not None else NOT_BUILT


def unasked_reason(request: PlanRequest, name: str, value: object) -> str:
    """Why no plan of this request has this value of an axis, where the job does not pin it."""
    if not request.managed or request.plugged:
        return closed_reason(request)
    carried_out = CARRIED_OUT.get(name, ())
    if carried_out is not None and value not in carried_out:
        return NOT_BUILT
    if value not in UNASKED.get(name, (value,)):
        return f"used only where the job pins it, by parallelism.{name}: {as_written(value)}"
    return closed_reason(request, name)


class Unbuilt(NamedTuple):
    """A value that the worker does not carry out beside the others of its plan."""

    name: str
    value: str
    nearest: str
    why: str


def unbuilt(setting: Setting, recompute: Recompute) -> Unbuilt | None:
    """What the worker does not carry out together, though each part of it alone; None where it carries out all."""
    layout, count = setting.layout, setting.micro_batches
    if layout.expert_tensor > 1:
        return Unbuilt("expertTensor", str(layout.expert_tensor), "1", "the worker does not cut an expert's matrices")
    if layout.virtual > 1 and setting.schedule is Schedule.GPIPE:
        return Unbuilt(
            "virtualStages", str(layout.virtual), "1", "the worker runs gpipe with one run of layers a stage"
        )
    rounds = max(1, count // layout.pipeline)
    if layout.pipeline > 1 and setting.schedule in IN_ROUNDS and count % rounds:
        why = f"the worker runs {setting.schedule.value} in {rounds} rounds of equally many micro-batches"
        return Unbuilt("accumulationSteps", str(count), str(count - count % layout.pipeline), why)
    if layout.pipeline > 1 and setting.schedule in ZERO_BUBBLE and recompute is not Recompute.NONE:
        why = f"torch recomputes once, and {setting.schedule.value} goes back through a stage twice"
        return Unbuilt("recompute", recompute.value, Recompute.NONE.value, why)
    return None


def on_request(rule: TaskRule) -> str:
    """Why the planner leaves alone what the task may have no rules for."""
    return f"needs rules in the task: used where parallelism.taskRules names {rule.value}, or the job pins it"


def _rules(parallelism: Parallelism) -> frozenset[TaskRule]:
    """What the task has rules for: as the job says, and as what it pins lets conclude."""
    wish = given(parallelism)
    implied = {rule for rule in TaskRule if wish.get(rule, NEUTRAL[rule]) != NEUTRAL[rule]}
    if not parallelism.task_rules and implied >= {TaskRule.TENSOR, TaskRule.EXPERT}:
        # no law allows the two without it
        implied.add(TaskRule.SEQUENCE)
    return frozenset({*parallelism.task_rules, *implied})


def _pinned(name: str, wish: Mapping[str, Any]) -> bool:
    values = CARRIED_OUT[name]
    return name in wish and (values is None or wish[name] in values)


def _ruled(name: str, rules: frozenset[TaskRule]) -> bool:
    return name not in NEEDS or NEEDS[name] in rules
