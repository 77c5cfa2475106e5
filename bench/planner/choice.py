"""Whether the model picks the right plan: among the measured plans of one model, batch and number of devices. Pure.

Each group is judged three ways: how much longer the plan with the shortest predicted step took than the fastest one;
how well predicted and measured steps agree in rank; and how much faster the pick was than the usual default, all by
measured times. The default: tensor parallelism over the devices of a node, the fewest pipeline stages measured with
it, and of those the largest micro-batch.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from bench.planner.rows import Row
from bench.planner.timing import USUAL_NODE

RANKED = 5
"""Fewer plans than this have no ranking worth a figure."""
_KEY = ("source", "model", "layers", "hidden", "seq", "gpu", "gpus", "gbs", "precision", "recompute")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that somebody measured, with what the model says of it, in seconds."""

    row: Row
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Group:
    """Plans of the same job on the same devices; at least two."""

    name: str
    plans: tuple[Candidate, ...]

    @property
    def pick(self) -> Candidate:
        """The plan that the model would choose."""
        return min(self.plans, key=lambda plan: plan.predicted)

    @property
    def ratio(self) -> float:
        """The pick's measured time by the best one's."""
        return self.pick.measured / min(plan.measured for plan in self.plans)

    @property
    def spearman(self) -> float | None:
        """Rank correlation (0 where all are equal); None for few plans."""
        if len(self.plans) < RANKED:
            return None
        measured = _ranks([plan.measured for plan in self.plans])
        predicted = _ranks([plan.predicted for plan in self.plans])
        if len(set(measured)) == 1 or len(set(predicted)) == 1:
            return 0.0
        return statistics.correlation(measured, predicted)

    @property
    def default(self) -> Candidate | None:
        """The usual plan; None where nobody measured one with tensor parallelism over a node."""
        node = min(USUAL_NODE, self.plans[0].row.whole("gpus") or USUAL_NODE)
        usual = [plan for plan in self.plans if plan.row.whole("tp") == node]
        return min(usual, key=_conventional, default=None)

    @property
    def gain(self) -> float | None:
        """The default's measured time by the pick's."""
        return None if self.default is None else self.default.measured / self.pick.measured


def groups(plans: Iterable[Candidate]) -> tuple[Group, ...]:
    """Groups of at least two plans, by name."""
    found: dict[tuple[str, ...], list[Candidate]] = defaultdict(list)
    for plan in plans:
        found[tuple(plan.row.text(column) for column in _KEY)].append(plan)
    several = {key: tuple(members) for key, members in found.items() if len(members) > 1}
    return tuple(Group(_name(members[0].row), members) for _, members in sorted(several.items()))


def _ranks(values: list[float]) -> list[float]:
    """The rank of each; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _name(row: Row) -> str:
    shape = f"{row.text('layers')}x{row.text('hidden')}"
    return f"{row.text('model')} {shape}, {row.text('gpus')} GPUs, batch {row.text('gbs')}"


def _conventional(plan: Candidate) -> tuple[int, int]:
    return (plan.row.whole("pp") or 1, -(plan.row.whole("mbs") or 1))
