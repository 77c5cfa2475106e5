"""Gradient compression in real rank processes: the bits, the curve, the memory in the checkpoint, and what differs."""

from pathlib import Path

import pytest
import torch

from tests.local.gang import Gang, RankFailedError
from tests.local.plugged import Plugged, train
from tests.local.training import committed, split

TOPK = {"method": "topk", "fraction": "0.001"}
SPARSE = {"method": "topk", "fraction": "0.02"}


def job(options: dict[str, str] | None, world: int = 2, **fields: object) -> Plugged:
    return Plugged(split(batch=fields.pop("batch", 48), data=world), options=options, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_identity_has_the_bits_of_no_plugin(gang: Gang, world: int) -> None:
    """With more than two ranks the order of sums shows."""
    plain, found = (train(gang, job(options, world, steps=12)) for options in (None, {"method": "identity"}))
    assert found.losses == plain.losses
    assert all(torch.equal(found.weights[name], weights) for name, weights in plain.weights.items())
    assert found.calls == 12, "one call a step through the gate"


@pytest.fixture(scope="module")
def plain(gang: Gang) -> float:
    """Mean loss of the last 20 of 400 steps without plug-in."""
    return tail(train(gang, job(None, batch=64, steps=400)).losses)


def tail(losses: list[float]) -> float:
    return sum(losses[-20:]) / 20


@pytest.mark.parametrize(
    ("options", "ratio", "tolerance"),
    [
        ({"method": "bf16"}, 2, 0.01),
        ({"method": "int8"}, 3.9, 0.01),
        ({"method": "int8", "rounding": "stochastic"}, 3.9, 0.01),
        (SPARSE, 30, 0.1),
    ],
    ids=["bf16", "int8", "int8, stochastic", "top 2 %"],
)
def test_digits_are_learnt_from_fewer_bytes(
    gang: Gang, plain: float, options: dict[str, str], ratio: float, tolerance: float
) -> None:
    """Within this much of the loss without plug-in, in nats."""
    found = train(gang, job(options, batch=64, steps=400))
    assert float(found.metrics["accuracy"]) >= 0.95
    assert tail(found.losses) <= plain + tolerance
    given, sent = found.traffic
    assert given / sent >= ratio


def test_sparse_gradients_converge_by_their_memory_alone(gang: Gang) -> None:
    """One number in a thousand, plain SGD: what is left out must come later."""
    kept, lost = (
        tail(train(gang, job({**TOPK, "errorFeedback": word}, batch=32, steps=300, rate=0.2)).losses)
        for word in ("true", "false")
    )
    assert kept < 0.5
    assert lost > 1.5


@pytest.mark.parametrize("options", [SPARSE, {"method": "int8", "rounding": "stochastic"}], ids=["top-k", "int8"])
@pytest.mark.parametrize("world", [2, 3])
def test_goes_on_bit_for_bit_with_its_memory(gang: Gang, tmp_path: Path, options: dict[str, str], world: int) -> None:
    first = job(options, world, steps=12, folder=tmp_path, every=6)
    straight = train(gang, first)
    restore = committed(first, 6)
    assert len(list((tmp_path / restore.path).glob("plugin-*.pt"))) == world
    resumed = train(gang, job(options, world, steps=12, folder=tmp_path, restore=restore))
    assert resumed.losses == straight.losses[6:]
    assert all(torch.equal(resumed.weights[name], weights) for name, weights in straight.weights.items())
    forgetful = train(gang, job(options, world, steps=12, folder=tmp_path, restore=restore, fault="forgotten"))
    assert forgetful.losses != straight.losses[6:], "the comparison would notice a memory that was left out"


def test_memory_is_shared_out_among_other_ranks(gang: Gang, tmp_path: Path) -> None:
    """Its sum is what counts; the curve stays near that of the run that was not stopped."""
    first = job(SPARSE, 2, steps=40, folder=tmp_path, every=20)
    straight = train(gang, first)
    restore = committed(first, 20)
    saved = [torch.load(tmp_path / restore.path / f"plugin-{rank}.pt", weights_only=True) for rank in range(2)]
    resumed = train(gang, job(SPARSE, 4, steps=20, folder=tmp_path, restore=restore))
    for name, memory in resumed.memory.items():
        assert torch.allclose(4 * memory, sum(part["memory"][name] for part in saved)), name
    gone_on = train(gang, job(SPARSE, 4, steps=40, folder=tmp_path, restore=restore))
    assert gone_on.losses[-1] == pytest.approx(straight.losses[-1], rel=0.1)


def test_memory_of_another_model_is_refused(gang: Gang, tmp_path: Path) -> None:
    first = job(SPARSE, steps=4, folder=tmp_path, every=2)
    train(gang, first)
    restore = committed(first, 2)
    with pytest.raises(RankFailedError, match=r"StorageError.*error memory of ghost"):
        train(gang, job(SPARSE, steps=4, folder=tmp_path, restore=restore, fault="renamed"))


def test_ranks_that_differ_are_named_before_the_first_step(gang: Gang) -> None:
    with pytest.raises(RankFailedError, match=r"ConflictError.*ranks \[1\] are not those of rank 0"):
        train(gang, job({"method": "int8"}, steps=2, fault="other"))


def test_payloads_of_unequal_lengths_are_named_before_they_are_sent(gang: Gang) -> None:
    """Gloo would end the process without a word."""
    with pytest.raises(RankFailedError, match=r"ConflictError.*lengths of payloads from .* of ranks \[1\]"):
        train(gang, job({"method": "topk"}, steps=2, fault="uneven"))


def test_sparse_gradients_are_refused_by_name(gang: Gang) -> None:
    """Without a plug-in they are added up as they are."""
    sparse = {"task": "tests.local.plugged:looked_up", "steps": 2, "double": False}
    assert len(train(gang, job(None, **sparse)).losses) == 2
    with pytest.raises(RankFailedError, match=r"InvalidInputError: plugins='compression'.*that of 0.weight is sparse"):
        train(gang, job({"method": "int8"}, **sparse))
