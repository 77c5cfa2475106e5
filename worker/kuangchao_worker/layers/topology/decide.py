"""Which process groups a plan needs and in which order they are made. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.parallel import Overlay
from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_worker.parallel.dimensions import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_DATA,
    EXPERT_REPLICATE,
    EXPERT_SHARD,
    PIPELINE,
    REPLICATE,
    SHARD,
    TENSOR,
)

WORLD: Final = "world"


class TopologyCycleError(KuangchaoError):
    """Groups wait for each other in a circle; the message names it."""


class Dimension(NamedTuple):
    """A dimension of the mesh: rank r has coordinate (r // stride) % size on it."""

    name: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """All groups of one axis. `members` are disjoint and cover every rank; `after` must exist before."""

    name: str
    members: tuple[tuple[int, ...], ...]
    after: tuple[str, ...] = ()


def dimensions(plan: ParallelPlan) -> tuple[Dimension, ...]:
    """The mesh of a plan, innermost first, without axes of one rank.

    Context ranks hold the same parameters as data ranks do, so both are one dimension, `data`. One over part of which
    states are sharded counts as two: `shard` inside, `replicate` outside. Raises InvalidInputError for axes that do not
    nest or do not make up the world.
    """
    axes = _axes(plan)
    holders = _holders(axes)
    if _experts(plan, axes) and all(axis.name != DATA for axis in holders):
        # experts have copies on other tensor ranks: what divides these is inside what divides all else, be it one rank
        place = [axis.name for axis in holders].index(TENSOR) + 1
        holders.insert(place, Dimension(DATA, 1, holders[place - 1].stride * plan.tensor))
    return tuple(part for axis in holders for part in _cut(axis, plan))


def _axes(plan: ParallelPlan) -> list[Dimension]:
    found: list[Dimension] = []
    stride = 1
    for axis in sorted((group for group in plan.groups if group.size > 1), key=lambda group: group.stride):
        if axis.stride != stride:
            raise InvalidInputError(f"plan.groups.{axis.axis.value}.stride", axis.stride, "axes do not nest", stride)
        found.append(Dimension(axis.axis.value, axis.size, axis.stride))
        stride *= axis.size
    if stride != plan.world_size:
        raise InvalidInputError("plan.worldSize", plan.world_size, "is not the product of the plan's axes", stride)
    return found


def _holders(axes: list[Dimension]) -> list[Dimension]:
    """The axes with context and data as one. Raises InvalidInputError unless context is just inside data."""
    names = [axis.name for axis in axes]
    if CONTEXT not in names:
        return axes
    place = names.index(CONTEXT)
    context, after = axes[place], axes[place + 1 :]
    if DATA in names and names[place + 1 : place + 2] != [DATA]:
        data = axes[names.index(DATA)]
        raise InvalidInputError("plan.groups.context.stride", context.stride, "is not just inside data", data.stride)
    size = context.size * (after.pop(0).size if DATA in names else 1)
    return [*axes[:place], Dimension(DATA, size, context.stride), *after]


def _cut(axis: Dimension, plan: ParallelPlan) -> list[Dimension]:
    shards = plan.shard_ranks
    if axis.name != DATA or plan.sharding is Sharding.NONE or shards in (0, 1, axis.size):
        return [axis]
    if axis.size % shards:
        raise InvalidInputError("plan.shardRanks", shards, f"does not divide the {axis.size} ranks of the data axis")
    inner = Dimension(SHARD, shards, axis.stride)
    return [inner, Dimension(REPLICATE, axis.size // shards, axis.stride * shards)]


def overlaid(plan: ParallelPlan) -> tuple[Dimension, ...]:
    """Groups beside the mesh: ranks that have parts of the same sequences, that divide the experts of a layer, and that
    have the same experts. Raises InvalidInputError for experts that are not divided over neighbours in a stage.
    """
    axes = _axes(plan)
    return (*(axis for axis in axes if axis.name == CONTEXT), *_experts(plan, axes))


def _experts(plan: ParallelPlan, axes: list[Dimension]) -> tuple[Dimension, ...]:
    """Of all ranks of a stage, its tensor ranks too, neighbours divide the experts of a layer, and those across have
    the same ones. Experts that nobody divides are data's, unless tensor ranks have them as well.
    """
    given = {group.axis: (group.size, group.stride) for group in plan.overlays}
    if plan.expert == 1 and (plan.tensor == 1 or Overlay.EXPERT_DATA not in given):
        return ()
    _, size, stride = _stage(axes)
    if given.get(Overlay.EXPERT, (1, stride)) != (plan.expert, stride) or size % plan.expert:
        why = f"does not divide the {size} ranks of a stage, neighbours first"
        raise InvalidInputError("plan.overlays.expert", given.get(Overlay.EXPERT), why, (plan.expert, stride))
    copies = Dimension(EXPERT_DATA, size // plan.expert, stride * plan.expert)
    return Dimension(EXPERT, plan.expert, stride), *_cut_copies(copies, plan)


def _stage(axes: list[Dimension]) -> Dimension:
    """All ranks of a pipeline stage. Raises InvalidInputError where those of others are among them."""
    inner = [axis for axis in axes if axis.name != PIPELINE]
    for axis, following in pairwise(inner):
        if following.stride != axis.stride * axis.size:
            why = "parts ranks of one stage that divide its experts"
            raise InvalidInputError("plan.groups.pipeline.stride", axis.stride * axis.size, why, "the largest")
    return Dimension("stage", prod(axis.size for axis in inner), inner[0].stride if inner else 1)


def _cut_copies(axis: Dimension, plan: ParallelPlan) -> list[Dimension]:
    """Ranks with the same experts, cut where states are sharded over fewer ranks than have the same of all else."""
    if plan.sharding is Sharding.NONE or plan.shard_ranks in (0, plan.data * plan.context):
        return [axis]
    shards = max(1, plan.tensor * plan.shard_ranks // plan.expert)
    if axis.size % shards:
        why = f"leaves {shards} shards of experts, which do not divide the {axis.size} ranks that have the same ones"
        raise InvalidInputError("plan.shardRanks", plan.shard_ranks, why, 0)
    outer = Dimension(EXPERT_REPLICATE, axis.size // shards, axis.stride * shards)
    return [outer] if shards == 1 else [Dimension(EXPERT_SHARD, shards, axis.stride), outer]


def groups_of(plan: ParallelPlan) -> tuple[GroupSpec, ...]:
    """The world, then one entry per dimension of the mesh and beside it, made after the world and the one before."""
    specs = [GroupSpec(WORLD, (tuple(range(plan.world_size)),))]
    for dimension in (*dimensions(plan), *overlaid(plan)):
        after = (WORLD,) if len(specs) == 1 else (WORLD, specs[-1].name)
        specs.append(GroupSpec(dimension.name, _members(dimension, plan.world_size), after))
    return tuple(specs)


def _members(dimension: Dimension, world: int) -> tuple[tuple[int, ...], ...]:
    _, size, stride = dimension
    bases = (first + inner for first in range(0, world, size * stride) for inner in range(stride))
    return tuple(tuple(range(base, base + size * stride, stride)) for base in bases)


def build_order(specs: Iterable[GroupSpec]) -> tuple[GroupSpec, ...]:
    """The groups in topological order (Kahn), equal for every rank. Raises TopologyCycleError naming a cycle."""
    by_name = {spec.name: spec for spec in specs}
    sorter = TopologicalSorter({spec.name: spec.after for spec in by_name.values()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise TopologyCycleError("groups wait for each other: " + " -> ".join(error.args[1])) from None
    order: list[GroupSpec] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        missing = [name for name in ready if name not in by_name]
        if missing:
            raise TopologyCycleError(f"a group waits for {missing[0]!r}, which is not in the plan")
        order += [by_name[name] for name in ready]
        sorter.done(*ready)
    return tuple(order)


def digest(order: Iterable[GroupSpec]) -> str:
    """SHA-256 over names and members in order: ranks with equal digests make the same groups, one after the other."""
    return hashlib.sha256(canonical_json([[spec.name, spec.members] for spec in order])).hexdigest()
