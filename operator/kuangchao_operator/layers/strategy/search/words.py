"""Plans, times and sizes as short text. Pure."""

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import Recompute, Sharding
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
    axes = (
        ("tp", layout.tensor),
        ("pp", layout.pipeline),
        ("cp", layout.context),
        ("ep", layout.expert),
        ("dp", layout.data),
    )
    text = "".join(f"{name}{size}" for name, size in axes if size > 1) or "dp1"
    words = [f"{text} micro-batch {setting.micro_batch}"]
    if layout.pipeline > 1:
        chunks = f" x{layout.virtual}" if setting.schedule is Schedule.INTERLEAVED else ""
        words.append(f"{setting.schedule.value}{chunks}")
    if setting.recompute is not Recompute.NONE:
        words.append(f"recompute {setting.recompute.value}")
    if setting.sharding is not Sharding.NONE:
        words.append(f"sharding {setting.sharding.value}{over(layout.shard_ranks)}")
    return ", ".join(words)


def over(shard_ranks: int) -> str:
    """Words for groups of ranks that shard what others shard too; none where all ranks are one group."""
    return f" over groups of {shard_ranks}" if shard_ranks else ""


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
