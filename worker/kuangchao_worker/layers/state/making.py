"""Makes a task's model with the first weights that it has in one process, of which each rank holds a share only.

The model is made twice. In rehearsal all large tensors lie in one memory, and what only fills them is left out; it is
noted which tensor becomes which parameter, and which are read from. Then in earnest: parameters that other ranks make
lie in one memory, one over the other, and everything else has its own. Every operation is carried out, on tensors of
the same sizes and in the same order, so each draws the random numbers that it draws where all weights are kept.

Never decides what a rank trains: whoever splits the model gets the makers' weights afterwards (`Share.hand_out`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kuangchao_worker.layers.state.handing import Share
from kuangchao_worker.layers.state.marks import MADE_BY
from kuangchao_worker.layers.state.operators import arguments, writes

log = logging.getLogger(__name__)
LEAST_BYTES: Final = 4_096
"""Smaller parameters are made by every rank: a page of memory is not worth a message."""
SHAPES: Final = frozenset(f"{made}_like" for made in ("empty", "zeros", "ones", "full", "rand", "randn")) | {
    f"new_{made}" for made in ("empty", "empty_strided", "zeros", "ones", "full")
}
"""Operations that take of a tensor what it is like, and no value."""
VALUES: Final = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)
"""Ways to values that are no operation of torch."""


class NotInPartsError(Exception):
    """A model of which no part can be left out; why."""


@dataclass
class _Memory:
    """One memory for many tensors, each with a storage of its own so that they can be told apart."""

    room: Any = field(default_factory=lambda: np.empty(0, np.uint8))

    def over(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same kind that lies in it; what it holds is anything."""
        size = tensor.untyped_storage().nbytes()
        if size > len(self.room):
            self.room = np.empty(size, np.uint8)
        storage = torch.from_numpy(self.room[:size]).untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


class _Making(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Numbers storages as they come up. Those in `without`, or in rehearsal (None) all large ones, share a memory."""

    def __init__(self, without: frozenset[int] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._without = without
        self.memory = _Memory()
        self.sizes: list[int] = []
        self.read = set[int]()
        """Storages from which others were made."""
        self.shared = set[int]()
        self.unsure = set[int]()
        """Storages whose values are not those of one process: shared ones, and what was computed from them."""
        self._numbers: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []

    def number(self, tensor: torch.Tensor) -> int:
        """Of its storage."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - the only way past one's own mode
            storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:  # noqa: SLF001 - storages have no other identity
            self._note(storage, len(self.sizes))
            self.sizes.append(storage.nbytes())
        return self._numbers[storage._cdata]  # noqa: SLF001 - as above

    def _note(self, storage: torch.UntypedStorage, number: int) -> None:
        self._numbers[storage._cdata] = number  # noqa: SLF001 - as above
        # the address is nobody else's as long as this lives, also when the storage itself does not
        self._references.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]  # torch

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry out an operation. Raises NotInPartsError where what follows depends on values that are not there."""
        del types
        read, written = self._given(func, args, kwargs or {})
        before, name = len(self.sizes), func.__name__.split(".")[0]
        if name in SHAPES:
            read.clear()
        if self._without is None and written and written <= self.shared and name.endswith("_"):
            result = args[0]
        else:
            result = func(*args, **(kwargs or {}))
        result = tree_map_only(torch.Tensor, lambda tensor: self._placed(tensor, before), result)
        made = written | {self.number(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        self.read |= {number for number in read if made - {number}}
        if read & self.unsure:
            if not made:
                raise NotInPartsError(f"{func} looks at weights while the model is made")
            self.unsure |= made
        return result

    def _given(self, func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[set[int], set[int]]:
        """Storages that an operation reads, and those that it writes to."""
        read, written = set[int](), set[int]()
        for argument, value in arguments(func, args, named):
            found = {self.number(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}
            (written if writes(argument) else read).update(found)
        return read, written

    def _placed(self, tensor: torch.Tensor, before: int) -> torch.Tensor:
        """A result where it belongs: one with a new storage may have to share its memory."""
        number = self.number(tensor)
        if number < before or tensor.device.type != "cpu" or type(tensor) is not torch.Tensor:
            return tensor
        large = self.sizes[number] >= LEAST_BYTES
        if not (large if self._without is None else number in self._without):
            return tensor
        placed = self.memory.over(tensor)
        self.shared.add(number)
        self.unsure.add(number)
        self._note(placed.untyped_storage(), number)
        return placed


class _Watching(TorchFunctionMode):
    """Notices who asks for values past torch's operations."""

    def __init__(self, making: _Making) -> None:
        super().__init__()
        self._making = making

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Raises NotInPartsError for a tensor whose values are not there."""
        del types
        if func in VALUES and self._making.number(args[0]) in self._making.unsure:
            raise NotInPartsError(f"{func.__name__} looks at weights while the model is made")
        return func(*args, **(kwargs or {}))


def _made(model: Callable[[], nn.Module], making: _Making) -> nn.Module:
    with _Watching(making), making:
        return model()


def rehearsed(model: Callable[[], nn.Module]) -> tuple[dict[str, int], list[int]]:
    """Parameters that can be left out, with the number of their storage; and the sizes of all storages, in bytes."""
    making = _Making()
    module = _made(model, making)
    named = {name: making.number(parameter) for name, parameter in module.named_parameters()}
    users = Counter((*named.values(), *map(making.number, module.buffers())))
    alone = {
        name: number
        for name, number in named.items()
        if users[number] == 1 and number in making.shared and number not in making.read
    }
    bytes_of = {name: p.numel() * p.element_size() for name, p in module.named_parameters()}
    return {name: n for name, n in alone.items() if bytes_of[name] == making.sizes[n]}, making.sizes


def makers(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """Who makes which parameter, so that all make about as many bytes: each goes to who has the least. Pure."""
    loads = [0] * world
    found = {}
    for name, size in sizes.items():
        found[name] = min(range(world), key=loads.__getitem__)
        loads[found[name]] += size
    return found


def make_share(
    model: Callable[[], nn.Module], reseed: Callable[[], None], rank: int, world: int
) -> tuple[nn.Module, Share | None]:
    """The model, in which parameters that others make hold anything, and this rank's share of it.

    `reseed` sets all random number generators as they are before a model is made. A model that cannot be made in parts
    is made whole (None): one that looks at weights, or is not made alike twice.
    """
    try:
        reseed()
        found, sizes = rehearsed(model)
        made_by = makers({name: sizes[number] for name, number in found.items()}, world)
        without = frozenset(number for name, number in found.items() if made_by[name] != rank)
        making = _Making(without)
        # one memory for all from the start: whoever splits the model asks by address what lies in it
        making.memory.room = np.empty(max((sizes[number] for number in without), default=0), np.uint8)
        reseed()
        module = _made(model, making)
        if making.sizes != sizes:
            raise NotInPartsError("its tensors are others when it is made again")
    except Exception as error:  # noqa: BLE001 - code of the task, which met tensors without values
        log.warning("the model is made whole: %s: %s", type(error).__name__, error)
        reseed()
        return model(), None
    return module, _share(module, made_by, rank, making)


def _share(module: nn.Module, made_by: Mapping[str, int], rank: int, making: _Making) -> Share:
    parameters = dict(module.named_parameters())
    for name, maker in made_by.items():
        setattr(parameters[name], MADE_BY, maker)
    own = {name: parameters[name].detach() for name, maker in made_by.items() if maker == rank}
    kinds = {name: (tuple(parameters[name].shape), parameters[name].dtype) for name in made_by}
    return Share(rank, dict(made_by), own, kinds, making.memory.room)
