"""Which ranks form which group, as rules: the mesh, and what lies over it. Pure; no list of ranks is ever made.

The order is the usual one: tensor innermost, where messages are largest and most frequent, then context, then data, and
pipeline outermost. Ranks of a stage are neighbours, so experts are spread over them from the inside out too.
"""

from kuangchao_contracts.parallel import Overlay, OverlayGroups
from kuangchao_contracts.plan import Axis, AxisGroups
from kuangchao_operator.layers.strategy.footprint.layout import Layout


def mesh(layout: Layout) -> tuple[AxisGroups, ...]:
    """The axes, innermost first. Data is always there: a world of one rank is a mesh too."""
    sizes = (
        (Axis.TENSOR, layout.tensor),
        (Axis.CONTEXT, layout.context),
        (Axis.DATA, layout.data),
        (Axis.PIPELINE, layout.pipeline),
    )
    found, stride = [], 1
    for axis, size in sizes:
        if size > 1 or axis is Axis.DATA:
            found.append(AxisGroups(axis=axis, size=size, stride=stride))
        stride *= size
    return tuple(found)


def overlays(layout: Layout, shard_ranks: int = 0, *, moe: bool = False) -> tuple[OverlayGroups, ...]:
    """Groups of experts, for a model that has some, and of shards where these are not all data x context ranks."""
    found = [*(_experts(layout) if moe or layout.expert_ranks > 1 else ()), *_shards(layout, shard_ranks)]
    return tuple(OverlayGroups(axis=axis, size=size, stride=stride) for axis, size, stride in found if size > 1)


def _experts(layout: Layout) -> tuple[tuple[Overlay, int, int], ...]:
    stage = layout.tensor * layout.context * layout.data
    return (
        (Overlay.EXPERT_TENSOR, layout.expert_tensor, 1),
        (Overlay.EXPERT, layout.expert, layout.expert_tensor),
        (Overlay.EXPERT_DATA, stage // layout.expert_ranks, layout.expert_ranks),
    )


def _shards(layout: Layout, shard_ranks: int) -> tuple[tuple[Overlay, int, int], ...]:
    if shard_ranks in (0, layout.replicas):
        return ()
    return (
        (Overlay.SHARD, shard_ranks, layout.tensor),
        (Overlay.REPLICA, layout.replicas // shard_ranks, layout.tensor * shard_ranks),
    )


def members(rank: int, group: AxisGroups | OverlayGroups) -> range:
    """The ranks of the group that a rank is in."""
    first = rank - rank // group.stride % group.size * group.stride
    return range(first, first + group.size * group.stride, group.stride)


def uncovered(group: AxisGroups | OverlayGroups, world: int) -> int:
    """Ranks at the end of the world that no whole group covers; 0: each rank is in exactly one group."""
    return world % (group.size * group.stride)
