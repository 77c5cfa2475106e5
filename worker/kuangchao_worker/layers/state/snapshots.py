"""Copies of the weights of one committed step, for who reads them in the rank while training goes on.

There is one copy at most, in main memory, made when somebody asks and the last one is too old, and its memory is used
again for the next. Weights are never copied while they are written, nor a copy changed while somebody reads it.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch

from kuangchao_contracts.errors import UnavailableError
from kuangchao_worker.layers.state.readonly import ReadOnly, bare
from kuangchao_worker.weights import Weights

SNAPSHOT_STEPS: Final = 10
"""A read sees the weights as they were at the newest snapshot, which is renewed when it is that many steps old."""


@dataclass
class _Copy:
    step: int
    tensors: dict[str, torch.Tensor]
    readers: int = 0


class Snapshots:
    """The newest snapshot, and who reads it. `parameters` gives the live tensors of this rank, by name."""

    def __init__(self, parameters: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._parameters = parameters
        self._still = threading.Lock()
        """Held by who changes weights, and by who copies them."""
        self._counting = threading.Lock()
        self._step = 0
        self._newest: _Copy | None = None

    @contextmanager
    def writing(self, step: int) -> Iterator[None]:
        """Around whatever may change weights, which are those of `step` after it."""
        with self._still:
            yield
            self._step = step

    def forget(self) -> None:
        """Weights were replaced: the next reader gets new ones, whatever their step."""
        self._newest = None

    @contextmanager
    def held(self, timeout: float) -> Iterator[Weights]:
        """A snapshot that stays as it is. Raises UnavailableError if weights are written to for `timeout` seconds."""
        copy = self._take(timeout)
        try:
            yield Weights(copy.step, MappingProxyType({name: ReadOnly(t) for name, t in copy.tensors.items()}))
        finally:
            with self._counting:
                copy.readers -= 1

    def _take(self, timeout: float) -> _Copy:
        if not self._still.acquire(timeout=timeout):
            raise UnavailableError(f"the weights have been written to for {timeout:g} s")
        try:
            copy = self._newest
            # nobody else begins to read it now, so it may be written to if nobody does
            if copy is None or (copy.readers == 0 and self._step - copy.step >= SNAPSHOT_STEPS):
                copy = self._newest = self._renewed(copy)
            with self._counting:
                copy.readers += 1
            return copy
        finally:
            self._still.release()

    def _renewed(self, old: _Copy | None) -> _Copy:
        with torch.no_grad():
            if old is None:
                return _Copy(self._step, {name: p.to("cpu", copy=True) for name, p in self._parameters().items()})
            for name, parameter in self._parameters().items():
                old.tensors[name].copy_(parameter)
        return _Copy(self._step, old.tensors)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names and bytes of tensors: equal digests mean equal weights."""
    result = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        result.update(name.encode())
        result.update(bare(tensor).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return result.hexdigest()
