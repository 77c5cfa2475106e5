"""Finds out when weights were changed by anybody but state: a lease on writing, and a seal on what was written.

Looks at weights between two writes of state and never changes them. What it sees, each at the next call of state:

- an operation in place on a parameter, also under `no_grad`: torch counts them (`Tensor._version`). One by code of the
  schedule, which state itself calls, is seen before that write is over;
- a learning rate or a step of the schedule that is not the one state left;
- a gradient of a parameter that required none when links were made: no other rank would get it;
- a write that torch does not count (by `.data`, by a DTensor's local tensor, by memory shared with NumPy), or another
  parameter in its place: one parameter at each step is compared with what state left, so what is done over and over is
  found within as many steps as there are parameters, and what is done once perhaps never. Up to `SAMPLED` elements of a
  parameter are compared, and which tensors the optimizer keeps of it, with torch's counts.

It protects from mistakes, not from code that means to hide: that runs in the same process, and could change this too.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kuangchao_contracts.errors import ConflictError, InvalidInputError, ParameterTamperedError, UnleasedWriteError

SAMPLED: Final = 256
_versions = attrgetter("_version")


class Owned(NamedTuple):
    """What only state may change."""

    module: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None


class WriteLease:
    """Who may write weights at this moment: one operation of state, or nobody."""

    def __init__(self, rank: int) -> None:
        self._rank, self._lock = rank, threading.Lock()
        self._holder: int | None = None
        """The thread that writes."""

    @contextmanager
    def held(self, operation: str) -> Iterator[None]:
        """Around a write. Raises ConflictError while another one is in progress: writes are serial."""
        if not self._lock.acquire(blocking=False):
            raise ConflictError(f"rank {self._rank}: {operation} while another write to the weights is in progress")
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()

    def guard(self, optimizer: Optimizer) -> None:
        """Let the optimizer step only under the lease."""
        optimizer.register_step_pre_hook(self._require)

    def _require(self, *_: object) -> None:
        if self._holder != threading.get_ident():
            raise UnleasedWriteError(
                f"rank {self._rank}: optimizer.step was called by other code than state; a step is asked for by"
                " submit_gradients"
            )


class Seal:
    """What state left at its last write. `check` before the next one, `renew` after it."""

    def __init__(self, owned: Owned, rank: int) -> None:
        self._owned, self._rank = owned, rank
        named = list(owned.module.named_parameters())
        self._names, self._parameters = [name for name, _ in named], [p for _, p in named]
        foreign = {id(p) for group in owned.optimizer.param_groups for p in group["params"]} - set(
            map(id, self._parameters)
        )
        if foreign:
            why = "are updated and no parameters of the model: other ranks would have others"
            raise InvalidInputError("task.optimizer", f"{len(foreign)} tensors", why, "what it is given")
        self._frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        self._turn = -1
        if owned.scheduler is not None:
            owned.optimizer.register_step_post_hook(lambda *_: self._look())
        self.renew()

    def renew(self) -> None:
        """State has written: take down what is there now, and of the next parameter in turn what it holds."""
        self._look()
        self._rates = self._schedule()
        if self._parameters:
            self._turn = (self._turn + 1) % len(self._parameters)
            self._sample = _sampled(self._parameters[self._turn]).clone()
            self._kept = self._optimizers()

    def _look(self) -> None:
        self._seen = list(map(_versions, self._parameters))

    def check(self, step: int) -> None:
        """Raise ParameterTamperedError, naming the parameter, if something has changed since.

        Raises InvalidInputError for a gradient that state knows nothing of.
        """
        self._check_versions(step, "was written to")
        if self._rates != self._schedule():
            raise self._tampered("a learning rate was changed", step)
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                why = f"required no gradient when links were made and has one at step {step}, which no other rank gets"
                raise InvalidInputError("task.model", name, why, "requires_grad from the beginning")
        if self._parameters:
            self._check_sample(step)

    def check_schedule(self, step: int) -> None:
        """As `check`, of what was done after the optimizer's step: the schedule is code of the task as well."""
        if self._owned.scheduler is not None:
            self._check_versions(step, "was written to when the schedule was stepped")

    def _check_versions(self, step: int, what: str) -> None:
        versions = list(map(_versions, self._parameters))
        if versions != self._seen:
            changed = next(i for i, version in enumerate(versions) if version != self._seen[i])
            raise self._tampered(f"parameter {self._names[changed]} {what}", step)

    def _check_sample(self, step: int) -> None:
        name, parameter = self._names[self._turn], self._parameters[self._turn]
        # where parameters are in pieces, torch itself puts whole ones in their place for a while
        if not hasattr(parameter, "_local_tensor") and _found(self._owned.module, name) is not parameter:
            raise self._tampered(f"parameter {name} was replaced", step)
        now = _sampled(parameter)
        # NaN is not equal to itself, but its bytes are
        if not torch.equal(now, self._sample) and not torch.equal(_bytes(now), _bytes(self._sample)):
            raise self._tampered(f"what parameter {name} holds was changed", step)
        kept = self._optimizers()
        if [(id(t), version) for t, version in kept] != [(id(t), version) for t, version in self._kept]:
            raise self._tampered(f"what the optimizer keeps of parameter {name} was changed", step)

    def _optimizers(self) -> list[tuple[torch.Tensor, int]]:
        """What the optimizer keeps of the parameter in turn."""
        state = self._owned.optimizer.state.get(self._parameters[self._turn])
        tensors = state.values() if isinstance(state, Mapping) else ()
        return [(t, _versions(t)) for t in tensors if isinstance(t, torch.Tensor)]

    def _schedule(self) -> list[Any]:
        rates = [_rate(group.get("lr")) for group in self._owned.optimizer.param_groups]
        return [*rates, self._owned.scheduler.last_epoch if self._owned.scheduler is not None else 0]

    def _tampered(self, what: str, step: int) -> ParameterTamperedError:
        return ParameterTamperedError(
            f"rank {self._rank}, step {step}: {what} by other code than state; weights change by submit_gradients only"
        )


def _found(module: nn.Module, name: str) -> Any:
    """What bears a name there. Modules of TorchScript have no `get_parameter`."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _rate(rate: Any) -> Any:
    # one that is a tensor lives on the device: reading it here would wait for that
    return (id(rate), _versions(rate)) if isinstance(rate, torch.Tensor) else rate


def _sampled(parameter: nn.Parameter) -> torch.Tensor:
    """Up to `SAMPLED` elements of this rank's piece, spread over it."""
    # without importing DTensor, which those whose plan splits nothing would wait for
    piece = getattr(parameter, "_local_tensor", parameter).data.reshape(-1)
    stride = max(1, piece.numel() // SAMPLED)
    return piece[: SAMPLED * stride : stride]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
