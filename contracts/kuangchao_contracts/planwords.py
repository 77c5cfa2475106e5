"""A plan in a few words, alike wherever plans are told: in status, in refusals, among what a search passed over. Pure.

Takes sizes and words of enumerations, no plan: a search has settings that are none yet.
"""

from collections.abc import Sequence

from kuangchao_contracts.parallel import Schedule


def axes(*, tensor: int, pipeline: int, context: int, expert: int, data: int) -> str:
    """Sizes of the axes that divide something: dp2, tp2pp2dp4."""
    sizes = (("tp", tensor), ("pp", pipeline), ("cp", context), ("ep", expert), ("dp", data))
    return "".join(f"{name}{size}" for name, size in sizes if size > 1) or "dp1"


def plan_words(
    split: str,
    micro_batch: int,
    *,
    pipeline: int,
    schedule: Schedule,
    chunks: int,
    recompute: str,
    sharding: str,
    shard_ranks: int = 0,
    stage_layers: Sequence[int] = (),
    sequence: bool = False,
    expert_tensor: int = 1,
) -> str:
    """All that is not as usual: "tp8pp4dp32 micro-batch 1, 1f1b, recompute full, sharding optimizer".

    `split` is what `axes` says, `chunks` how many runs of layers a stage has.
    """
    said = [f"{split} micro-batch {micro_batch}"]
    if pipeline > 1:
        said.append(schedule.value + (f" x{chunks}" if schedule is Schedule.INTERLEAVED else ""))
    said += [f"layers {'-'.join(map(str, stage_layers))}"] if stage_layers else []
    said += ["sequence"] if sequence else []
    said += [f"recompute {recompute}"] if recompute != "none" else []
    said += [f"sharding {sharding}{over(shard_ranks)}"] if sharding != "none" else []
    said += [f"expert tensor {expert_tensor}"] if expert_tensor > 1 else []
    return ", ".join(said)


def over(shard_ranks: int) -> str:
    """Words for groups of ranks that shard what others shard too; none where all ranks are one group."""
    return f" over groups of {shard_ranks}" if shard_ranks else ""
