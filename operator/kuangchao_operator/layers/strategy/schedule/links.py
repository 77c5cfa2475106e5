"""In which order communicators are made and used: one wrong rank and all wait for ever. Pure.

Making a communicator, and each collective on it, waits for all of its members. Ranks that take communicators in
different orders can wait in a circle; ranks that take them axis by axis cannot.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kuangchao_contracts.parallel import OverlayGroups
from kuangchao_contracts.plan import AxisGroups
from kuangchao_operator.layers.strategy.schedule.waits import DeadlockError, Waits

Rule = AxisGroups | OverlayGroups


class Group(NamedTuple):
    """One communicator: the ranks from `first` on that differ on one axis only."""

    axis: str
    first: int
    size: int
    stride: int

    @property
    def ranks(self) -> range:
        """Its members."""
        return range(self.first, self.first + self.size * self.stride, self.stride)


def groups_of(rank: int, axes: Iterable[Rule]) -> tuple[Group, ...]:
    """The communicators of a rank, in the order of the axes."""
    found = []
    for axis in axes:
        place = rank // axis.stride % axis.size
        found.append(Group(axis.axis, rank - place * axis.stride, axis.size, axis.stride))
    return tuple(found)


def creation_order(axes: Sequence[Rule], world: int) -> tuple[Group, ...]:
    """All communicators of a plan, each after those that its members make before it. Raises DeadlockError."""
    return order({rank: groups_of(rank, axes) for rank in range(world)})


def order(programs: dict[int, Sequence[Group]]) -> tuple[Group, ...]:
    """Communicators in an order in which all ranks can take part; `programs`: what each rank takes in turn.

    Raises DeadlockError where there is none, or where a member never comes.
    """
    numbers: dict[Group, int] = {}
    takes = {rank: [numbers.setdefault(group, len(numbers)) for group in turn] for rank, turn in programs.items()}
    groups = tuple(numbers)
    graph = Waits(len(groups))
    for rank, turn in takes.items():
        graph.program(rank, [(number,) for number in turn])
    _all_come(groups, takes)
    return tuple(groups[n] for n in graph.order(lambda number, rank: _does(groups[number], rank)))


def _all_come(groups: Sequence[Group], takes: dict[int, list[int]]) -> None:
    present = [0] * len(groups)
    for turn in takes.values():
        for number in turn:
            present[number] += 1
    for number, group in enumerate(groups):
        if present[number] != group.size:
            members = set(group.ranks)
            here = next(rank for rank, turn in takes.items() if number in turn)
            gone = [rank for rank in sorted(members) if number not in takes.get(rank, ())]
            why = f"which rank {gone[0]} never does" if gone else "of which it is no member"
            raise DeadlockError([f"{_does(group, here)}, {why}"])


def _does(group: Group, rank: int) -> str:
    last = group.ranks[-1]
    return f"rank {rank} joins the {group.axis} group of ranks {group.first} to {last} by {group.stride}"
