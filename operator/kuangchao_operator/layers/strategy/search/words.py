"""Plans, times and sizes as short text. Pure."""

from kuangchao_contracts.planwords import axes, plan_words
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.search.rank import Scored
from kuangchao_operator.layers.strategy.shown import duration
from kuangchao_operator.layers.strategy.timing.step import StepTime

PARTS = {
    "tensor_us": "tensor",
    "context_us": "context",
    "expert_us": "expert",
    "pipeline_us": "pipeline",
    "data_us": "data",
    "optimizer_us": "the update",
    "compute_us": "computation",
}
"""What each part of a step's time is called."""


def label(setting: Setting) -> str:
    """A plan in a few words: "tp8pp4dp32 micro-batch 1, 1f1b, recompute full, sharding optimizer"."""
    layout = setting.layout
    return plan_words(
        axes(
            tensor=layout.tensor,
            pipeline=layout.pipeline,
            context=layout.context,
            expert=layout.expert,
            data=layout.data,
        ),
        setting.micro_batch,
        pipeline=layout.pipeline,
        schedule=setting.schedule,
        chunks=layout.virtual,
        recompute=setting.recompute,
        sharding=setting.sharding,
        shard_ranks=layout.shard_ranks,
    )


def costs(scored: Scored, budget: int | None) -> str:
    """Time and memory of a plan."""
    words = [] if scored.step is None else [f"step {duration(scored.step.step_us)}"]
    if budget is not None and scored.need:
        words.append(f"{human_bytes(scored.need)} of {human_bytes(budget)}")
    return ", ".join(words)


def growth(step: StepTime, best: StepTime) -> str:
    """Which part of a step takes most of what it is longer than another: "tensor +3.1 ms"; "" if none is longer."""
    added = {name: getattr(step, name) - getattr(best, name) for name in PARTS}
    name = max(added, key=lambda part: added[part])
    return f"{PARTS[name]} +{duration(added[name])}" if added[name] > 0 else ""
