"""Which process groups a plan needs and in which order they are made. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from kuangchao_contracts.base import canonical_json
from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan, Sharding

WORLD: Final = "world"
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

    A data axis over part of which states are sharded counts as two: `shard` inside, `replicate` outside. Raises
    InvalidInputError for axes that do not nest or do not make up the world.
    """
    found: list[Dimension] = []
    stride = 1
    for axis in sorted((group for group in plan.groups if group.size > 1), key=lambda group: group.stride):
        if axis.stride != stride:
            raise InvalidInputError(f"plan.groups.{axis.axis.value}.stride", axis.stride, "axes do not nest", stride)
        found += _cut(axis, plan)
        stride *= axis.size
    if stride != plan.world_size:
        raise InvalidInputError("plan.worldSize", plan.world_size, "is not the product of the plan's axes", stride)
    return tuple(found)


def _cut(axis: AxisGroups, plan: ParallelPlan) -> list[Dimension]:
    shards = plan.shard_ranks
    if axis.axis is not Axis.DATA or plan.sharding is Sharding.NONE or shards in (0, 1, axis.size):
        return [Dimension(axis.axis.value, axis.size, axis.stride)]
    if axis.size % shards:
        raise InvalidInputError("plan.shardRanks", shards, f"does not divide the {axis.size} ranks of the data axis")
    inner = Dimension(SHARD, shards, axis.stride)
    return [inner, Dimension(REPLICATE, axis.size // shards, axis.stride * shards)]


def groups_of(plan: ParallelPlan) -> tuple[GroupSpec, ...]:
    """The world and one entry per dimension, which is made after the world and after the dimension inside it."""
    specs = [GroupSpec(WORLD, (tuple(range(plan.world_size)),))]
    for dimension in dimensions(plan):
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
