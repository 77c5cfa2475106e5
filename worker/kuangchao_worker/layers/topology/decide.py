"""Which process groups a plan needs and in which order they are made. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.parallel import Overlay
from kuangchao_contracts.plan import Axis, ParallelPlan, Sharding

WORLD: Final = "world"
DATA: Final = Axis.DATA.value
CONTEXT: Final = Axis.CONTEXT.value
EXPERT: Final = Overlay.EXPERT.value
EXPERT_DATA: Final = Overlay.EXPERT_DATA.value
REPLICATE: Final = "replicate"
SHARD: Final = "shard"


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
    return tuple(part for axis in _holders(_axes(plan)) for part in _cut(axis, plan))


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
    have the same experts. Raises InvalidInputError for experts that are not divided over neighbours among data ranks.
    """
    axes = _axes(plan)
    context = tuple(axis for axis in axes if axis.name == CONTEXT)
    return (*context, *_experts(plan, axes)) if plan.expert > 1 else context


def _experts(plan: ParallelPlan, axes: list[Dimension]) -> tuple[Dimension, ...]:
    holders = next((axis for axis in _holders(axes) if axis.name == DATA), Dimension(DATA, 1, 1))
    given = [(group.size, group.stride) for group in plan.overlays if group.axis is Overlay.EXPERT]
    if given != [(plan.expert, holders.stride)] or holders.size % plan.expert:
        why = f"does not divide the {holders.size} ranks of data x context, neighbours first"
        raise InvalidInputError("plan.overlays.expert", given, why, (plan.expert, holders.stride))
    found = Dimension(EXPERT, plan.expert, holders.stride)
    return found, Dimension(EXPERT_DATA, holders.size // plan.expert, holders.stride * plan.expert)


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
