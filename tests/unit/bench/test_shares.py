"""The order of samples of the loop that we are compared with."""

import torch
from bench.torchrun_loop import shares


def test_ranks_share_each_batch_and_every_sample_comes_once_in_an_epoch() -> None:
    ranks = [shares(12, 4, rank, 2) for rank in range(2)]
    steps = [torch.cat([next(rank) for rank in ranks]) for _ in range(6)]
    epochs = torch.cat(steps).view(2, 12)
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


def test_an_epoch_that_is_no_multiple_of_the_batch_goes_on_in_the_next() -> None:
    stream = shares(5, 4, 0, 1)
    assert sorted(torch.cat([next(stream) for _ in range(5)]).tolist()) == sorted(list(range(5)) * 4)
