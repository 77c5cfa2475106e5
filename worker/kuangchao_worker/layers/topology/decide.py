"""Which process groups a plan needs and in which order they are made. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.plan import ParallelPlan

WORLD: Final = "world"


class TopologyCycleError(KuangchaoError):
    """Groups wait for each other in a circle; the message names it."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """All groups of one axis. `members` are disjoint and cover every rank; `after` must exist before."""

    name: str
    members: tuple[tuple[int, ...], ...]
    after: tuple[str, ...] = ()


def groups_of(plan: ParallelPlan) -> tuple[GroupSpec, ...]:
    """The world and one entry per axis of the plan; an axis is made after the world and after the axis inside it."""
    specs = [GroupSpec(WORLD, (tuple(range(plan.world_size)),))]
    for axis in sorted(plan.groups, key=lambda group: group.stride):
        members: dict[tuple[int, int], list[int]] = {}
        span = axis.size * axis.stride
        for rank in range(plan.world_size):
            members.setdefault((rank // span, rank % axis.stride), []).append(rank)
        after = (WORLD,) if len(specs) == 1 else (WORLD, specs[-1].name)
        specs.append(GroupSpec(axis.axis.value, tuple(tuple(ranks) for ranks in members.values()), after))
    return tuple(specs)


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
