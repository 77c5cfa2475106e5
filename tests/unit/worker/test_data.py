"""The order of samples: whole epochs, shared by the ranks of a step without gap or overlap."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset, default_collate

from kuangchao_worker.layers.execution.data import Batches, SampleOrder
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import make_plan


@given(seed=st.integers(0, 2**31 - 1), size=st.integers(1, 50), batch=st.integers(1, 40), steps=st.integers(1, 6))
def test_stream_is_whole_epochs_one_after_the_other(seed: int, size: int, batch: int, steps: int) -> None:
    order = SampleOrder(seed, size)
    stream = torch.cat([order.samples(step * batch, batch) for step in range(steps)]).tolist()
    for start in range(0, len(stream) - size + 1, size):
        assert sorted(stream[start : start + size]) == list(range(size))
    # a rank that joins later sees the same, without anything that was stored
    assert SampleOrder(seed, size).samples((steps - 1) * batch, batch).tolist() == stream[-batch:]


@given(world=st.sampled_from([1, 2, 4]), accumulation=st.sampled_from([1, 2, 4]), step=st.integers(1, 30))
def test_ranks_share_a_step_without_gap_or_overlap(world: int, accumulation: int, step: int) -> None:
    plan = make_plan(world, batch=16, accumulation=accumulation)
    task = mlp({"samples": "50"})
    parts = [Batches(task.dataset, task.collate, plan, rank, 7).indices(step) for rank in range(world)]
    assert all(len(micro) == accumulation for micro in parts)
    together = torch.cat([indices for micro in parts for indices in micro])
    assert together.tolist() == SampleOrder(7, 50).samples((step - 1) * 16, 16).tolist()


def test_epochs_and_seeds_differ_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    order = SampleOrder(3, 100)
    epochs = [order.samples(i * 100, 100).tolist() for i in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != SampleOrder(4, 100).samples(0, 100).tolist()
    assert torch.equal(before, torch.get_rng_state())


def test_map_style_and_tensor_datasets_give_equal_batches() -> None:
    task = mlp({"samples": "20"})

    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return task.dataset[index]

    fast, slow = (Batches(data, task.collate, make_plan(1, batch=8), 0, 0) for data in (task.dataset, Plain()))
    for a, b in zip(fast.load(fast.indices(1)[0]), slow.load(slow.indices(1)[0]), strict=True):
        assert torch.equal(a, b)


class Brighter(TensorDataset):
    """Tensors whose samples are not their rows."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index] + (index % 2) for tensor in self.tensors)


def test_what_a_task_makes_of_tensors_is_what_it_gets() -> None:
    """The fast way past collating is for tensors that nothing is done to."""
    rows, plan = TensorDataset(torch.arange(8.0)), make_plan(1, batch=8)
    chosen = Batches(rows, len, plan, 0, 0)
    assert chosen.load(chosen.indices(1)[0]) == 8
    own = Batches(Brighter(torch.zeros(8)), default_collate, plan, 0, 0)
    assert own.load(own.indices(1)[0])[0].tolist() == [index % 2 for index in own.indices(1)[0].tolist()]
