"""Why the plans that were not chosen were not, and why axes are not used. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import Alternative, RejectedAxis
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.runnable import NEUTRAL
from kuangchao_operator.layers.strategy.search.best import Search
from kuangchao_operator.layers.strategy.search.layouts import Sketch
from kuangchao_operator.layers.strategy.search.plans import member
from kuangchao_operator.layers.strategy.search.rank import RULE, Scored, key
from kuangchao_operator.layers.strategy.search.words import costs, growth, label
from kuangchao_operator.layers.strategy.shown import as_written, duration, permille

MOST_LARGER: Final = 3
"""Larger micro-batches that are named where no time is known; else only the next one, since time decides."""
MOST_OTHERS: Final = 5
"""Other splits that are named."""
SUMMARY: Final = 256
BY_RULE: Final = "passed over by the rule that stands under objective"
MANUAL: Final = "not given, and mode Manual leaves it out then"
UNKNOWN: Final = "a model that is known by its sizes only has no layers to cut or to recompute"
DIVIDED: Final = "nothing is known of the model's layers, so what the job does not pin is left alone"
OF_PIPELINE: Final = ("virtualStages", "schedule", "stageLayers")


class Reasons:
    """What there is to say about one winner."""

    def __init__(self, search: Search, winner: Scored, closed: Callable[[str], str], *, kept: bool) -> None:
        """`closed` says why an axis is not the planner's to use; `kept`: the job gets the devices that it asks for."""
        self._search, self._winner, self._closed, self._kept = search, winner, closed, kept

    def alternatives(self) -> tuple[Alternative, ...]:
        """Larger micro-batches that do not fit, then the best of the other splits."""
        larger = tuple(self._larger())
        rest = (one for one in self._search.ranked() if self._other(one))
        others = sorted(islice(rest, MOST_OTHERS), key=lambda one: key(one, self._search.objective))
        named = (Alternative(summary=label(one.setting)[:SUMMARY], reason=self._lost(one)) for one in others)
        return (*larger, *named)

    def rejected(self) -> tuple[RejectedAxis, ...]:
        """One reason for every axis that is not used, and one for a time that is not known."""
        unused = (RejectedAxis(axis=name, reason=self._unused(name)) for name in NEUTRAL if not self._uses(name))
        return (*unused, *self._order())

    def _other(self, one: Scored) -> bool:
        """Whether it is another plan; by rule a smaller micro-batch of the same split is none worth naming."""
        if self._winner.step is None and one.setting.layout == self._winner.setting.layout:
            return False
        return one.setting != self._winner.setting

    def _order(self) -> Iterator[RejectedAxis]:
        search, layout = self._search, self._winner.setting.layout
        several = len(divisors(search.space.global_batch // layout.data)) > 1 if search.space.managed else False
        if search.objective is Objective.DEVICES and self._kept:
            why = "devices: a job gets the devices.count that it asks for; a what-if plan finds the fewest that fit"
            yield RejectedAxis(axis="objective", reason=why)
        elif self._winner.step is None and search.objective is not Objective.MEMORY and several:
            what = "these devices" if search.space.shaped else "a model without layers"
            yield RejectedAxis(axis="objective", reason=f"time: not known for {what}; preferred instead: {RULE}")

    def _larger(self) -> Iterator[Alternative]:
        """Micro-batches next above the chosen one, largest first, where they do not fit."""
        setting, space = self._winner.setting, self._search.space
        if "microBatch" in space.pins or not space.managed:
            return
        share = space.global_batch // setting.layout.data
        most = MOST_LARGER if self._winner.step is None else 1
        above = [size for size in divisors(share) if size > setting.micro_batch][-most:]
        for size in above:
            other = replace(setting, micro_batch=size, micro_batches=share // size)
            if not self._search.memory.fits(other):
                yield Alternative(summary=label(other)[:SUMMARY], reason=self._search.memory.refusal(other))

    def _lost(self, other: Scored) -> str:
        """Why one that fits was not chosen."""
        cost = costs(other, self._search.space.budget)
        best = self._winner.step
        if self._search.objective is Objective.MEMORY:
            return f"{cost}: {self._more_memory(other)}"
        if other.step is None or best is None:
            return f"{cost}; {BY_RULE}" if cost else BY_RULE
        more = other.step.step_us - best.step_us
        if more == 0:
            return f"{cost}: as fast, but needs more memory or is less simple"
        return f"{cost}: slower by {duration(more)} ({permille(more, best.step_us)}): {growth(other.step, best)}"

    def _more_memory(self, other: Scored) -> str:
        return f"needs {human_bytes(other.need - self._winner.need)} more on the fullest device"

    def _uses(self, name: str) -> bool:
        return member(self._winner.setting, name) != NEUTRAL[name]

    def _unused(self, name: str) -> str:
        why = self._closed(name)
        if why:
            return why
        space = self._search.space
        if name in space.given:
            return f"pinned to {as_written(space.pins[name]) if space.pins[name] != () else 'an even cut'}"
        return self._without_use(name) or (MANUAL if name in space.pins else self._compared(name))

    def _without_use(self, name: str) -> str:
        """Why an axis has nothing to do here, or is needed by nothing."""
        setting, space = self._winner.setting, self._search.space
        if not space.shaped and name != "sharding":
            return UNKNOWN if space.hypothetical and not _divided(setting) else DIVIDED
        if name == "expert" and space.model.experts is None:
            return "the model has no experts"
        if name == "sharding" and setting.layout.replicas == 1:
            return "no other rank holds the same parameters"
        if name in OF_PIPELINE and setting.layout.pipeline == 1:
            return "there is one pipeline stage"
        if name == "stageLayers":
            return "the layers come out evenly, and lighter ends would not make the slowest stage faster"
        if name == "sequence" and setting.layout.tensor == 1:
            return "tensor is 1"
        if name == "sequence" and name not in space.pins:
            return f"the sequence is no multiple of {setting.layout.tensor}"
        if name in ("recompute", "sharding"):
            return f"fits without: {costs(self._winner._replace(step=None), space.budget) or 'memory was not checked'}"
        return ""

    def _compared(self, name: str) -> str:
        """The best plan that uses an axis against the one that was chosen."""
        best = self._ordered(name) if name in OF_PIPELINE else self._best_with(name)
        without = self._fits_without(name)
        if best is None:
            return f"{without}no plan with it keeps the laws and fits"
        return f"{without}the best plan with it, {label(best.setting)}, {self._difference(best, name)}"

    def _difference(self, other: Scored, name: str) -> str:
        step, chosen = other.step, self._winner.step
        if self._search.objective is Objective.MEMORY:
            return self._more_memory(other)
        if step is None or chosen is None:
            return f"is {BY_RULE}"
        more = step.step_us - chosen.step_us
        if more == 0:
            return "is no faster"
        own = getattr(step, f"{name}_us", 0)
        share = f"{duration(own)} a step for {name} alone" if own else growth(step, chosen)
        return f"takes {duration(more)} more a step: {share}"

    def _best_with(self, name: str) -> Scored | None:
        return next(self._search.ranked(lambda sketch: getattr(sketch.layout, name) > 1), None)

    def _ordered(self, name: str) -> Scored | None:
        """The same split with its pipeline in another order, or with several chunks on each stage."""
        setting = self._winner.setting
        layout = replace(setting.layout, virtual=1, stage_layers=None, shard_ranks=0)
        sketch = Sketch(layout, setting.micro_batch, setting.micro_batches)
        if name == "schedule":
            return self._search.variant(sketch, lambda order: order.schedule is not setting.schedule)
        return self._search.variant(sketch, lambda order: order.layout.virtual > 1)

    def _fits_without(self, name: str) -> str:
        if name == "context":
            return f"sequence {self._search.space.training.sequence_length} fits without; "
        return "fits without; " if name in ("tensor", "pipeline") else ""


def _divided(setting: Setting) -> bool:
    return setting.layout.tensor > 1 or setting.layout.pipeline > 1
