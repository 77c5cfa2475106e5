"""How two plans compare: by time, or where no time is known by a stated rule; or by memory. Pure.

A key is a tuple of integers, so equal requests give the same order on every machine; its end names the plan itself.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kuangchao_contracts.parallel import Objective, Schedule
from kuangchao_contracts.plan import Recompute
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.search.variants import RECOMPUTE, SHARDING
from kuangchao_operator.layers.strategy.timing.step import StepTime

RULE: Final = (
    "no full recomputation, then the fewest ranks that divide the model, the least recomputation and sharding, and the"
    " largest micro-batch"
)
"""What decides where no time is known, in words."""
_ORDER: Final = tuple(Schedule)

Clock = Callable[[Setting], StepTime | None]
"""The time of a step; None: not known for these devices or this model."""


class Scored(NamedTuple):
    """A setting that fits, with its memory and its time."""

    setting: Setting
    need: int
    step: StepTime | None


def key(scored: Scored, objective: Objective) -> tuple[int, ...]:
    """Sort key: the best first. Devices are counted before the search, so that objective then goes by time."""
    time = scored.step.step_us if scored.step is not None else 0
    rule = (time,) if scored.step is not None else by_rule(scored.setting)
    if objective is Objective.MEMORY:
        return (scored.need, *rule, *identity(scored.setting))
    return (*rule, scored.need, *identity(scored.setting))


def by_rule(setting: Setting) -> tuple[int, ...]:
    """The order without a time: `RULE`."""
    layout = setting.layout
    return (
        int(setting.recompute is Recompute.FULL),
        layout.tensor * layout.pipeline * layout.context,
        layout.expert_ranks,
        RECOMPUTE.index(setting.recompute),
        SHARDING.index(setting.sharding),
        -setting.micro_batch,
    )


def identity(setting: Setting) -> tuple[int, ...]:
    """What tells two settings of one search apart, simpler ones first."""
    layout = setting.layout
    return (
        layout.pipeline,
        layout.tensor,
        layout.context,
        layout.expert,
        layout.expert_tensor,
        layout.virtual,
        _ORDER.index(setting.schedule),
        RECOMPUTE.index(setting.recompute),
        SHARDING.index(setting.sharding),
        layout.shard_ranks,
        -setting.micro_batch,
        *(layout.stage_layers or ()),
    )
