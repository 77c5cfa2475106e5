"""What a plan saves memory by changes no result: recomputation, and sharding of a part of the states."""

import pytest
import torch

from kuangchao_contracts.plan import Recompute, Sharding
from tests.local.gang import Gang
from tests.local.training import SMALL, Job, split, train

DROPPING = {**SMALL, "dropout": "0.2"}
SPLIT = {"tensor": 2, "pipeline": 2, "data": 2, "sequence": True, "sharding": Sharding.FULL, "accumulation": 2}


@pytest.mark.parametrize("kind", [Recompute.FULL, Recompute.SELECTIVE])
@pytest.mark.parametrize("sizes", [{"data": 2}, SPLIT], ids=["data", "all of it"])
def test_recomputation_changes_no_bit(gang: Gang, kind: Recompute, sizes: dict[str, object]) -> None:
    """Dropout too: what is recomputed draws the same random numbers again."""
    found, expected = (
        train(gang, Job(split(**sizes, recompute=how), args=DROPPING, double=False, steps=3))  # type: ignore[arg-type]
        for how in (kind, Recompute.NONE)
    )
    assert found.losses == expected.losses
    assert found.norms == expected.norms
    assert all(torch.equal(found.weights[name], weights) for name, weights in expected.weights.items())
