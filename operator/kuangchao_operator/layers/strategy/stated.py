"""Figures that a plan states of itself, against those that its request gives. Pure.

What a plan leaves out is filled in; what it states is compared, and nothing of it is believed or printed. Words (how a
figure came about, what a search passed over) are written anew, and the digest is that of the request that it is judged
for: a plan may have been made for another one.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from kuangchao_contracts.base import Contract
from kuangchao_contracts.parallel import PlacementRule
from kuangchao_contracts.plan import ParallelPlan, PlanRequest, StageMemory
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.search.need import Memory
from kuangchao_operator.layers.strategy.search.plans import plan_of, setting_of
from kuangchao_operator.layers.strategy.search.trial import trial
from kuangchao_operator.layers.strategy.shown import as_written
from kuangchao_operator.layers.strategy.sizes import Contradiction

FIGURES: Final = ("objective", "device_memory_bytes", "step_microseconds", "bubble_ppm", "step")
"""Members that follow from the others and the request, in the order in which they are told."""
FILLED: Final = (*FIGURES, "memory_checked", "memory", "placement", "request_digest")
CORRECTED: Final = "measured: "
"""How the line begins by which a stage says that a measured peak corrected its estimate."""
GROWN: Final = frozenset({"other_bytes", "total_bytes", "reserved_bytes"})
"""What such a peak makes larger."""


class Right(NamedTuple):
    """What a plan should say, and the memory model that says so."""

    plan: ParallelPlan
    """The judged plan with the figures that are right."""
    memory: Memory


def right(plan: ParallelPlan, request: PlanRequest, known: Knowledge) -> Right:
    """A plan that keeps every law with its figures as this request gives them; what was passed over is not known."""
    tried = trial(request, known)
    scored = tried.search.score(setting_of(plan, request))
    made = plan_of(scored, tried.memory, request, tried.shape, request.content_hash())
    figures = {name: getattr(made, name) for name in FILLED}
    return Right(plan.replace(**figures, alternatives=(), rejected=()), tried.memory)


def misstated(plan: ParallelPlan, request: PlanRequest, known: Knowledge) -> Contradiction | None:
    """The first figure of a plan that is another one, with the right one."""
    should, memory = right(plan, request, known)
    found = chain(_figures(plan, should), _memory(plan, memory, request), _placement(plan, should))
    return next(found, None)


def _figures(plan: ParallelPlan, should: ParallelPlan) -> Iterator[Contradiction]:
    for name in FIGURES:
        if name in plan.model_fields_set:
            yield from _compared(_wire_name(ParallelPlan, name), getattr(plan, name), getattr(should, name))


def _compared(field: str, written: object, wanted: object) -> Iterator[Contradiction]:
    """A part member by member; None is left out."""
    if isinstance(written, Contract) and isinstance(wanted, Contract):
        for name in type(written).model_fields:
            if name in written.model_fields_set:
                where = f"{field}.{_wire_name(type(written), name)}"
                yield from _compared(where, getattr(written, name), getattr(wanted, name))
    elif written is not None and written != wanted:
        yield _wrong(field, as_written(written), "none" if wanted is None else as_written(wanted))


def _memory(plan: ParallelPlan, memory: Memory, request: PlanRequest) -> Iterator[Contradiction]:
    if plan.memory and not memory.checked:
        yield _wrong("memoryChecked", "true", "false")
        return
    setting = setting_of(plan, request)
    for stage in plan.memory:
        yield from _stage(stage, memory.run(setting, stage.stage, stage.last_stage or stage.stage))


def _stage(stage: StageMemory, should: StageMemory) -> Iterator[Contradiction]:
    corrected = any(line.startswith(CORRECTED) for line in stage.arithmetic)
    for name in StageMemory.model_fields:
        if not name.endswith("_bytes"):
            continue
        written, wanted = getattr(stage, name), getattr(should, name)
        if not (corrected and name in GROWN and written >= wanted):
            yield from _compared(f"memory[{stage.stage}].{_wire_name(StageMemory, name)}", written, wanted)


def _placement(plan: ParallelPlan, should: ParallelPlan) -> Iterator[Contradiction]:
    """Required rules are those that the groups need: without one of them groups would be torn, with another the job
    might wait for ever. Wishes are filled in."""
    if "placement" not in plan.model_fields_set:
        return
    written, wanted = _required(plan), _required(should)
    if written != wanted:
        yield _wrong("placement", _ruled(written), _ruled(wanted))


def _required(plan: ParallelPlan) -> frozenset[str]:
    return frozenset(_rule(rule) for rule in plan.placement if rule.required)


def _rule(rule: PlacementRule) -> str:
    return f"size {rule.size}, stride {rule.stride} within {rule.within.value}"


def _ruled(rules: frozenset[str]) -> str:
    return "; ".join(f"required: {rule}" for rule in sorted(rules)) or "nothing required"


def _wrong(field: str, written: str, wanted: str) -> Contradiction:
    where = f"plan.{field}"
    near = f"nearest legal {where}: {wanted}; figures that a plan leaves out are filled in"
    message = f"{where}={written} is not what the plan comes to for this job; {near}"
    return Contradiction(where, written, wanted, message)


def _wire_name(kind: type[Contract], name: str) -> str:
    return kind.model_fields[name].alias or name
