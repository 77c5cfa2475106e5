"""Gradients that do not reach all ranks are found by their norm, on all of them and in the same step."""

import math
from typing import Any

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_worker.layers.execution.agreement import Agreement
from tests.local.gang import Gang, Seat, built
from tests.local.training import CPU, split

DATA = split(data=2)
NORMS = {
    (1.0, 1.0): "agreed", (1e-3, 1.001e-3): "agreed", (0.0, 0.0): "agreed", (math.inf, math.inf): "agreed",
    (1.0, 1.1): "RanksDiffer", (0.0, 1.0): "RanksDiffer", (math.inf, 1.0): "RanksDiffer",
}  # fmt: skip


def norms_apart(seat: Seat, mesh: Any, plan: ParallelPlan) -> list[str]:
    """What comes of pairs of norms."""
    found = []
    for pair in NORMS:
        try:
            Agreement(CPU).after_step(0.5, stop=False, save=False, step=1, norm=pair[seat.rank])
        except KuangchaoError as error:
            found.append(error.code)
        else:
            found.append("agreed")
    return found


def test_norms_of_one_step(gang: Gang) -> None:
    assert gang.run(2, built, DATA, norms_apart) == [list(NORMS.values())] * 2
