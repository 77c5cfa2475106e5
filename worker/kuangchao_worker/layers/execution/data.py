"""Which samples each rank sees in each step: a pure function of seed, step and plan, so nothing needs to be stored.

The epochs' permutations form one endless stream; step s (from 1) takes its next `global_batch` samples, also across
the end of an epoch, so no sample is dropped or seen twice in one epoch.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from kuangchao_contracts.errors import DatasetEndedError, InvalidInputError
from kuangchao_contracts.plan import Axis, ParallelPlan
from kuangchao_worker.parallel.tokens import cut


class SampleOrder:
    """The stream of sample indices."""

    def __init__(self, seed: int, size: int) -> None:
        if size < 1:
            raise InvalidInputError("task.dataset", size, "has no samples", 1)
        self._size = size
        # a step reads from two epochs at most unless the batch is larger than the data
        self._permutation = lru_cache(maxsize=4)(lambda epoch: _permutation(seed, epoch, size))

    def samples(self, start: int, count: int) -> torch.Tensor:
        """Indices of `count` samples from position `start` of the stream."""
        parts: list[torch.Tensor] = []
        while count:
            epoch, offset = divmod(start, self._size)
            part = self._permutation(epoch)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return torch.cat(parts)

    def epoch(self, position: int) -> int:
        """Epoch of a position in the stream."""
        return position // self._size


def _permutation(seed: int, epoch: int, size: int) -> torch.Tensor:
    # a generator of its own: the global one belongs to the model, and drawing from it would shift its numbers
    # the generator uses 32 bits of its seed, so both numbers are mixed into them
    mixed = int.from_bytes(hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:4], "big")
    generator = torch.Generator().manual_seed(mixed)
    return torch.randperm(size, generator=generator)


def size_of(dataset: Dataset[Any]) -> int:
    """How many samples there are. Raises InvalidInputError for a dataset that does not say so."""
    try:
        return len(dataset)  # type: ignore[arg-type]  # map-style datasets have a length
    except (TypeError, ValueError) as error:
        raise InvalidInputError("task.dataset", type(dataset).__name__, f"has no length: {error}") from error


class Batches:
    """The micro-batches of one rank. `tokens` says along which dimension of which tensors a plan divides sequences."""

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Callable[[list[Any]], Any],
        plan: ParallelPlan,
        rank: int,
        seed: int,
        tokens: Mapping[str, int] | None = None,
    ) -> None:
        self._dataset, self._collate, self._plan = dataset, collate, plan
        self._tokens, self._place = tokens or {}, plan.coordinate(rank, Axis.CONTEXT)
        self.order, self._rank = SampleOrder(seed, size_of(dataset)), rank
        self._share = plan.global_batch // plan.data
        self._offset = plan.coordinate(rank, Axis.DATA) * self._share

    def indices(self, step: int) -> list[torch.Tensor]:
        """Sample indices of this rank in a step (from 1), one tensor per micro-batch."""
        start = (step - 1) * self._plan.global_batch + self._offset
        return list(self.order.samples(start, self._share).split(self._plan.micro_batch))  # type: ignore[no-untyped-call]  # torch

    def load(self, indices: torch.Tensor) -> Any:
        """One micro-batch: all of its samples, and of each the tokens of this context rank."""
        whole = self._load(indices)
        return whole if self._plan.context == 1 else cut(whole, self._tokens, self._place, self._plan.context)

    def _load(self, indices: torch.Tensor) -> Any:
        if type(self._dataset) is TensorDataset and self._collate is default_collate:
            # indexing whole tensors gives the same batch as collating samples, thirty times faster
            return self._dataset[indices]
        return self._collate([self._sample(index) for index in indices.tolist()])

    def _sample(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except IndexError as error:
            size, said = size_of(self._dataset), str(error) or "IndexError"
            raise DatasetEndedError(f"rank {self._rank}: sample {index} of a dataset of {size}: {said}") from error
