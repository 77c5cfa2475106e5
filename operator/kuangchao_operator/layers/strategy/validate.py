"""Whether a plan keeps every law, be it from the search or written by hand: refused with reason, or fine. Pure.

Nothing that the plan says is believed: its groups, its batch, its figures and the order of its schedule are judged
anew for the request that it is for. It changes nothing and never turns a refusal into a warning.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.parallel import Objective, Schedule
from kuangchao_contracts.plan import Axis, Infeasible, ParallelismMode, ParallelPlan, PlanRequest, TransformerModel
from kuangchao_contracts.units import human_bytes, least_bytes
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.groups import overlays, uncovered
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.legality import broken, unsound
from kuangchao_operator.layers.strategy.modellaws import ACROSS
from kuangchao_operator.layers.strategy.numbers import either, nearest_divisors
from kuangchao_operator.layers.strategy.pins import as_infeasible
from kuangchao_operator.layers.strategy.placement import filled_island
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, limits, open_axes, unasked_reason, unbuilt
from kuangchao_operator.layers.strategy.schedule.links import creation_order
from kuangchao_operator.layers.strategy.schedule.proof import prove
from kuangchao_operator.layers.strategy.schedule.waits import DeadlockError
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.plans import setting_of
from kuangchao_operator.layers.strategy.search.precision import not_built
from kuangchao_operator.layers.strategy.search.space import space_of
from kuangchao_operator.layers.strategy.search.trial import trial, weakest
from kuangchao_operator.layers.strategy.search.unmeasured import unmeasured
from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.sizes import Contradiction, Sizes, sizes_of
from kuangchao_operator.layers.strategy.stated import misstated


class Case(NamedTuple):
    """What a rule is judged on."""

    plan: ParallelPlan
    request: PlanRequest
    known: Knowledge
    setting: Setting


Rule = Callable[[Case], Contradiction | None]


def violation(plan: ParallelPlan, request: PlanRequest, known: Knowledge) -> Infeasible | None:
    """The first law that a plan for a request breaks, with the offending numbers and the nearest legal value."""
    found = laws.violated(request)
    if found is not None:
        return found
    case = Case(plan, request, known, setting_of(plan, request))
    wrong = next((why for rule in RULES if (why := rule(case)) is not None), None)
    if wrong is not None:
        return as_infeasible(wrong, request)
    tried = trial(request, known)
    found = not_built(tried) or unmeasured(tried) or _memory(case)
    if found is not None:
        return found
    wrong = misstated(plan, request, known)
    return None if wrong is None else as_infeasible(wrong, request)


def _size(case: Case) -> Contradiction | None:
    """The plan is for this many devices, in such pods, and for this batch."""
    plan, request = case.plan, case.request
    fewer = request.what_if and request.parallelism.objective is Objective.DEVICES
    if plan.world_size != request.devices and not (fewer and plan.world_size < request.devices):
        return _differs("worldSize", plan.world_size, request.devices, "devices.count")
    if plan.per_pod != request.per_pod:
        return _differs("perPod", plan.per_pod, request.per_pod, "devices.perPod")
    if plan.pods * plan.per_pod != plan.world_size:
        return _differs("pods", plan.pods, plan.world_size // plan.per_pod, "worldSize / perPod")
    if plan.managed != request.managed:
        return _differs("managed", plan.managed, request.managed, "spec.task")
    if plan.global_batch != request.training.global_batch:
        return _differs("plan.globalBatch", plan.global_batch, request.training.global_batch, "training.globalBatch")
    return None


def _pins(case: Case) -> Contradiction | None:
    """What the user pinned stands in the plan, and axes that workers do not run do nothing in it."""
    wish, wire = _meant(case, case.request.parallelism.wire()), _meant(case, case.plan.wire())
    opened, limited = open_axes(case.request), limits(case.request)
    manual = case.request.parallelism.mode is ParallelismMode.MANUAL
    for name in (*NEUTRAL, "data", "microBatch"):
        neutral = _plain(NEUTRAL.get(name, 1))
        written = wire.get(name, neutral)
        # how many layers each stage gets follows from the sizes where the user does not say it, in Manual too
        implied = neutral if manual and name != "stageLayers" else written
        if written != wish.get(name, implied):
            return _differs(name, written, wish.get(name, neutral), f"spec.parallelism.{name}")
        usable = name in opened and written in limited.get(name, (written,))
        if not usable and written != neutral:
            return _unpinned(case, name, limited.get(name, ()) if name in opened else ())
    return None


def _meant(case: Case, wire: dict[str, Any]) -> dict[str, Any]:
    """What is written without layers of stages that are those which they would get anyway."""
    layers, model = wire.get("stageLayers", []), case.request.model
    count = case.plan.pipeline * case.plan.virtual_stages
    whole = model.layers if isinstance(model, TransformerModel) else 0
    usual = not layers or len(layers) == count == 1 or list(layers) == [whole // count] * count
    return {name: value for name, value in wire.items() if name != "stageLayers"} if usual else wire


def _unpinned(case: Case, name: str, usable: tuple[object, ...]) -> Contradiction:
    """A value that the job would have to pin, with the first one that does in its place, all else being as it is."""
    wire = case.plan.wire()
    written = as_written(wire[name])
    near = as_written(next((value for value in usable if _holds(case, wire | {name: value})), _plain(NEUTRAL[name])))
    why = f"{name}={written}: {unasked_reason(case.request, name, wire[name])}"
    return Contradiction(name, written, near, f"{why}; nearest legal {name}: {near}")


def _holds(case: Case, wire: dict[str, object]) -> bool:
    """Whether a plan keeps every law, whatever it says of itself."""
    plan = ParallelPlan.model_validate(wire)
    other = case._replace(plan=plan, setting=setting_of(plan, case.request))
    return all(rule(other) is None for rule in RULES) and _memory(other) is None


def _together(case: Case) -> Contradiction | None:
    """Parts that workers carry out one by one, and not beside each other."""
    found = None if case.request.what_if else unbuilt(case.setting, case.setting.recompute)
    if found is None:
        return None
    message = f"{found.name}={found.value}: {found.why}; nearest legal {found.name}: {found.nearest}"
    return Contradiction(found.name, found.value, found.nearest, message)


def _equal_devices(case: Case) -> Contradiction | None:
    """GPUs of several kinds share a job over data only."""
    why, wire = laws.mixed(case.request), case.plan.wire()
    axis = next((name for name in ACROSS if wire[name] > 1), None)
    if not why or axis is None:
        return None
    return Contradiction(axis, wire[axis], "1", f"{axis}={wire[axis]}: {why}; nearest legal {axis}: 1")


def _layout(case: Case) -> Contradiction | None:
    """Every law of layouts. A tensor size beyond an island of fast links is the user's to pin."""
    sizes = _sizes(case)
    forced = case.request.parallelism.tensor is not None
    per_pod = case.plan.per_pod
    width = min(filled_island(shape, per_pod) for shape in laws.hosts(case.request))
    return broken(sizes) or unsound(sizes, None if forced else width, per_pod)


def _sizes(case: Case) -> Sizes:
    batch = case.plan.global_batch if case.plan.managed else None
    return sizes_of(case.setting, case.plan.world_size)._replace(global_batch=batch, lone_ends=False)


def _batch(case: Case) -> Contradiction | None:
    """Micro-batches of all ranks make up the batch, none is lost."""
    plan = case.plan
    whole = plan.micro_batch * plan.accumulation_steps * plan.data
    if not plan.managed or whole == plan.global_batch:
        return None
    share = plan.global_batch // plan.data
    steps = str(share // plan.micro_batch) if share % plan.micro_batch == 0 else either(nearest_divisors(share, 1))
    return Contradiction(
        "accumulationSteps",
        plan.accumulation_steps,
        steps,
        f"microBatch {plan.micro_batch} x accumulationSteps {plan.accumulation_steps} x data {plan.data} = {whole}"
        f" samples, and globalBatch is {plan.global_batch}; nearest legal accumulationSteps: {steps}",
    )


def _even_layers(case: Case) -> Contradiction | None:
    """Layers that do not come out even are placed by name: frameworks were seen to drop the rest."""
    plan, model = case.plan, case.request.model
    stages = plan.pipeline * plan.virtual_stages
    if not isinstance(model, TransformerModel) or plan.stage_layers or model.layers % stages == 0:
        return None
    nearest = either(nearest_divisors(model.layers, stages))
    return Contradiction(
        "stageLayers",
        "even",
        f"{stages} numbers that sum to {model.layers}",
        f"stageLayers: {model.layers} layers do not come out even on pipeline {plan.pipeline} x virtualStages"
        f" {plan.virtual_stages} = {stages} stages, and the plan does not say who gets the rest; nearest legal number"
        f" of stages: {nearest}, or {stages} numbers that sum to {model.layers}",
    )


def _mesh(case: Case) -> Contradiction | None:
    """Groups of the mesh have the plan's sizes, and cover all ranks exactly once: each axis nests in the next."""
    plan, stride = case.plan, 1
    sizes = {Axis.TENSOR: plan.tensor, Axis.CONTEXT: plan.context, Axis.DATA: plan.data, Axis.PIPELINE: plan.pipeline}
    for group in sorted(plan.groups, key=lambda one: (one.stride, one.size)):
        size = sizes.pop(group.axis, 0)
        if size != group.size:
            named = f"groups[{group.axis.value}]"
            if size == 0:
                return Contradiction(
                    named, group.size, "none", f"{named} stands twice, or is no axis of a mesh; legal: none"
                )
            return _differs(named, group.size, size, group.axis.value)
        if group.stride != stride:
            named = f"groups[{group.axis.value}].stride"
            why = "ranks would be in no group or in two"
            return Contradiction(
                named, group.stride, str(stride), f"{named}={group.stride}: {why}; nearest legal: {stride}"
            )
        stride *= group.size
    missing = [axis for axis, size in sizes.items() if size > 1]
    if missing or stride != plan.world_size:
        named = f" without {missing[0].value}" if missing else ""
        message = f"groups{named} cover {stride} of {plan.world_size} ranks; nearest legal: {plan.world_size}"
        return Contradiction("groups", stride, str(plan.world_size), message)
    return None


def _overlays(case: Case) -> Contradiction | None:
    """Groups of experts and of shards are those of the plan's sizes; each rank of a stage is in one of each kind."""
    plan, layout, model = case.plan, case.setting.layout, case.request.model
    moe = isinstance(model, TransformerModel) and model.experts is not None
    wanted = {group.axis: group for group in overlays(layout, layout.shard_ranks, moe=moe)}
    written = {group.axis: group for group in plan.overlays}
    for axis in sorted({*wanted, *written}):
        rule, group = wanted.get(axis), written.get(axis)
        if rule == group:
            continue
        named, legal = f"overlays[{axis.value}]", "none" if rule is None else f"size {rule.size}, stride {rule.stride}"
        stated = "none" if group is None else f"size {group.size}, stride {group.stride}"
        left = uncovered(group, plan.world_size // plan.pipeline) if group is not None else 0
        lost = f", which leaves out {left} ranks of each stage" if left else ""
        return Contradiction(named, stated, legal, f"{named} is {stated}{lost}; nearest legal: {legal}")
    if len(written) < len(plan.overlays):
        return Contradiction("overlays", len(plan.overlays), str(len(written)), "overlays name one kind of group twice")
    return None


def _stages(case: Case) -> Contradiction | None:
    """What is said of memory is said of every stage once, and its parts sum to its total."""
    plan = case.plan
    if plan.memory_checked != bool(plan.memory):
        return _differs("memoryChecked", plan.memory_checked, bool(plan.memory), "stages in memory")
    covered = [n for stage in plan.memory for n in range(stage.stage, (stage.last_stage or stage.stage) + 1)]
    if plan.memory and covered != list(range(plan.pipeline)):
        near = f"0 to {plan.pipeline - 1}, each once"
        return Contradiction(
            "memory", _few(covered), near, f"memory is of stages {_few(covered)}; nearest legal: {near}"
        )
    for stage in plan.memory:
        parts = (stage.parameters_bytes, stage.gradients_bytes, stage.optimizer_bytes, stage.activations_bytes)
        if sum(parts) + stage.other_bytes != stage.total_bytes:
            return _differs(
                f"memory[{stage.stage}].totalBytes", stage.total_bytes, sum(parts) + stage.other_bytes, "its parts"
            )
    return None


def _few(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return text + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _order(case: Case) -> Contradiction | None:
    """The schedule ends: its sends and receives wait for each other in no circle."""
    plan = case.plan
    if plan.pipeline == 1:
        return None
    try:
        prove(plan.schedule, plan.pipeline, plan.virtual_stages, plan.accumulation_steps)
    except DeadlockError as error:
        return Contradiction(
            "schedule", plan.schedule.value, Schedule.ONE_F_ONE_B.value, f"schedule={plan.schedule.value}: {error}"
        )
    except InvalidInputError as error:
        return Contradiction(error.field, str(error.value), str(error.nearest), str(error))
    return None


def _links(case: Case) -> Contradiction | None:
    """Communicators can be made: there is an order in which every member comes to each of them (Kahn 1962)."""
    plan = case.plan
    try:
        creation_order((*plan.groups, *plan.overlays), plan.world_size)
    except DeadlockError as error:
        return Contradiction(
            "groups", len(plan.groups), "another order", f"groups: {error}; nearest legal: another order"
        )
    return None


RULES: Final[tuple[Rule, ...]] = (
    _size,
    _pins,
    _equal_devices,
    _layout,
    _batch,
    _together,
    _even_layers,
    _mesh,
    _overlays,
    _stages,
    _links,
    _order,
)
"""In the order in which each can rely on those before it."""


def _memory(case: Case) -> Infeasible | None:
    """The memory of every stage, computed anew, against the device with the least."""
    shape = weakest(laws.hosts(case.request))
    memory = Memory(space_of(case.request, shape, case.known.calibration), case.known.calibration)
    need, budget = memory.need(case.setting), memory.space.budget
    if not memory.checked or budget is None or need <= budget:
        return None
    stages = memory.stages(case.setting)
    worst = max(stages, key=lambda stage: stage.reserved_bytes)
    return refused(
        reason="Infeasible",
        field="deviceMemory",
        value=human_bytes(shape.memory_bytes),
        nearest=least_bytes(device_bytes_for(need, memory.space.backend, case.known.calibration)),
        message=f"stage {worst.stage} of the plan {memory.refusal(case.setting)}; {'; '.join(worst.arithmetic)}",
        memory=stages,
    )


def _differs(field: str, written: object, wanted: object, source: str) -> Contradiction:
    has, legal = as_written(written), as_written(wanted)
    message = f"{field}={has} contradicts {source}, by which it is {legal}; nearest legal {field}: {legal}"
    return Contradiction(field, has, legal, message)


def _plain(value: object) -> object:
    """As it stands on the wire."""
    return [] if value == () else value
