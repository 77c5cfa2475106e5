"""Gradients that do not reach all ranks are found by their norm, on all of them and in the same step."""

import math
import re
from dataclasses import replace
from typing import Any

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.mlp import mlp
from tests.local.gang import Gang, Seat, built
from tests.local.test_planted import end
from tests.local.training import CPU, Job, split

DATA = split(data=2)
NORMS = {
    (1.0, 1.0): "agreed", (1e-3, 1.001e-3): "agreed", (0.0, 0.0): "agreed", (math.inf, math.inf): "agreed",
    (1.0, 1.1): "RanksDiffer", (0.0, 1.0): "RanksDiffer", (math.inf, 1.0): "RanksDiffer",
}  # fmt: skip


def around(args: dict[str, str]) -> Task:
    """A task that calls what is inside the module that it is given, so that nobody adds gradients up."""
    made = mlp(args)
    return replace(made, loss=lambda module, batch: made.loss(getattr(module, "module", module), batch))


def test_gradients_that_reach_no_other_rank(gang: Gang) -> None:
    words = r"RanksDiffer: step 1: the gradients' norm is \S+ on rank {} and \S+ on average"
    name = f"{__name__}:around"
    for rank, told in enumerate(gang.run(2, end, Job(DATA, name, {"dropout": "0"}, double=False))):
        assert re.match(words.format(rank), told), "all are told, so that none waits"
    assert gang.run(1, end, Job(split(), name, {"dropout": "0"}, double=False)) == ["trained"]


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
