"""What ranks agree on after each step, over real links: what one asks for all do, and the loss is everybody's."""

from typing import Any

import pytest

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_worker.layers.execution.agreement import Agreed, Agreement
from tests.local.gang import Gang, Seat, built
from tests.local.training import CPU, split

RESTORE = CheckpointRef(step=20, attempt=1, path="step-20.att-1", digest="0" * 64)


def step(seat: Seat, mesh: Any, plan: ParallelPlan, asks: str) -> Agreed:
    agreement, alone = Agreement(CPU, plan.pipeline), seat.rank == 1
    loss = 0.0 if plan.pipeline > 1 and not alone else 1.0 + 2 * seat.rank
    return agreement.after_step(loss, stop=alone and asks == "stop", save=alone and asks == "save", step=7)


def start(seat: Seat, mesh: Any, plan: ParallelPlan) -> CheckpointRef | None:
    return Agreement(CPU).start(RESTORE if seat.rank == 0 else None)


@pytest.mark.parametrize("asks", ["nothing", "stop", "save"])
def test_what_one_rank_asks_for_all_do_and_the_loss_is_the_mean(gang: Gang, asks: str) -> None:
    """A signal comes to one rank, and clocks differ: who acted alone would leave the others in a collective."""
    agreed = Agreed(loss=2.0, stop=asks == "stop", save=asks == "save")
    assert gang.run(2, built, split(data=2), step, asks) == [agreed, agreed]


def test_the_loss_of_a_pipeline_is_that_of_its_last_stage(gang: Gang) -> None:
    agreed = Agreed(loss=3.0, stop=False, save=False)
    assert gang.run(2, built, split(pipeline=2, accumulation=2), step, "nothing") == [agreed, agreed]


def test_all_start_where_rank_0_was_told_to(gang: Gang) -> None:
    assert gang.run(2, built, split(data=2), start) == [RESTORE, RESTORE]
