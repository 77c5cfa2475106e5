"""What a plan saves memory by changes no result: recomputation, and sharding of a part of the states."""

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from kuangchao_contracts.plan import ParallelPlan, Recompute, Sharding
from kuangchao_worker.rank.wiring import make_parameters
from tests.local.gang import Gang, Seat, built
from tests.local.training import CPU, SMALL, Job, Trained, split, train

DROPPING = {**SMALL, "dropout": "0.2"}
SPLIT = {"tensor": 2, "pipeline": 2, "data": 2, "sequence": True, "sharding": Sharding.FULL, "accumulation": 2}


LAYOUTS: dict[str, dict[str, Any]] = {"data": {"data": 2}, "all of it": SPLIT}


def recomputing(gang: Gang, layout: str, how: Recompute) -> Trained:
    return train(gang, Job(split(**LAYOUTS[layout], recompute=how), args=DROPPING, double=False, steps=3))


@pytest.fixture(scope="module")
def kept(gang: Gang) -> dict[str, Trained]:
    """Runs that recompute nothing."""
    return {layout: recomputing(gang, layout, Recompute.NONE) for layout in LAYOUTS}


@pytest.mark.parametrize("kind", [Recompute.FULL, Recompute.SELECTIVE])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_recomputation_changes_no_bit(gang: Gang, kept: dict[str, Trained], kind: Recompute, layout: str) -> None:
    """Dropout too: what is recomputed draws the same random numbers again."""
    found, expected = recomputing(gang, layout, kind), kept[layout]
    assert found.losses == expected.losses
    assert found.norms == expected.norms
    assert all(torch.equal(found.weights[name], weights) for name, weights in expected.weights.items())


COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")
UNITS = 5
"""Links of the chain with parameters: embedding, two blocks, norm and head."""


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # two micro-batches: gathered, reduced to shards, reduced to all
        ({"data": 2, "sharding": Sharding.FULL}, (4 * UNITS, UNITS, 0)),
        ({"data": 2, "sharding": Sharding.OPTIMIZER}, (UNITS, UNITS, 0)),
        ({"data": 2, "sharding": Sharding.GRADIENTS}, (UNITS, 2 * UNITS, 0)),
        ({"data": 4, "shard_ranks": 2, "sharding": Sharding.GRADIENTS}, (UNITS, 2 * UNITS, UNITS)),
    ],
    ids=["full", "optimizer", "gradients", "gradients in islands"],
)
def test_each_kind_of_sharding_communicates_as_its_stage_of_zero_says(
    gang: Gang, sizes: dict[str, object], expected: tuple[int, int, int]
) -> None:
    plan = split(accumulation=2, **sizes)
    for counts in gang.run(plan.world_size, built, plan, _communicated):
        assert counts == expected


def _communicated(seat: Seat, mesh: DeviceMesh | None, plan: ParallelPlan) -> tuple[int, ...]:
    """How often a step gathers, reduces to shards and reduces to all."""
    from torch.distributed.tensor.debug import CommDebugMode

    task = Job(plan).made()
    store = make_parameters(task, CPU, 0, plan)
    store.connect(mesh)
    with CommDebugMode() as seen:
        for last in (False, True):
            with store.reduction(last=last):
                store.compute(task.loss, task.dataset[torch.arange(2)]).backward()  # type: ignore[no-untyped-call]
    named = {str(name): count for name, count in seen.comm_counts.items()}
    return tuple(sum(n for name, n in named.items() if kind in name) for kind in COLLECTIVES)
