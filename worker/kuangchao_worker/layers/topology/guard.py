"""Keeps links for those who may use them: torch itself and the layers of this rank. Never looks at what links carry.

While it is on, the public functions of `torch.distributed`, and the methods of process groups and stores beneath them,
look at the module that calls them. A call from any other module is refused and remembered: code that catches the error
is stopped at the next step. What only asks (`get_rank`, `is_initialized`) is free for all.

The caller's module decides, not which code runs just now: hooks of FSDP and DTensor communicate within the forward pass
of the user's model, and are torch's. Collectives of a GPU's or DDP's C++ code never pass here.

It protects from mistakes, not from code that means to hide: that runs in the same process, can take another module's
name, and reaches operators of `torch.ops` that no function of Python stands before.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, TracebackType
from typing import Any, Final, Self, TypeGuard

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.device_mesh as meshes
import torch.distributed.nn as differentiable
import torch.distributed.rpc as remote
from torch._C import _distributed_c10d as bound  # torch.distributed has these classes, but not for type checkers
from torch.distributed import distributed_c10d as c10d

from kuangchao_contracts.errors import DirectCommunicationError

ALLOWED: Final = ("torch.", "kuangchao_worker.layers.", "kuangchao_worker.parallel.", "kuangchao_worker.rank.")
ASKING: Final = ("get_", "is_", "supports_", "_get_", "_has_", "_id", "_backend_id", "_device_types", "__", "_pybind")
"""How names begin of what only asks."""
ASKS: Final = frozenset({"rank", "size", "name", "boxed", "unbox", "mem_allocator", "memory_stats", "has_extended_api"})
"""Other methods that only ask."""
HANDS_OUT: Final = frozenset(
    {
        "get_group_store",
        "_get_default_group",
        "_get_default_store",
        "_get_process_group_store",
        "get_reconfigure_handle",
    }
)
"""What is called like a question and hands out what links are made of."""
PRIVATE: Final = (
    "_coalescing_manager", "_broadcast_coalesced", "_all_gather_base", "_reduce_scatter_base", "_new_group_with_tag",
    "_new_process_group_helper", "_find_or_create_pg_by_ranks_and_tag", "_abort_process_group", *HANDS_OUT,
)  # fmt: skip
"""Functions of `torch.distributed` that are not public, and found in programs."""
SHOWING: Final = (dist, c10d, meshes, functional, differentiable, differentiable.functional)
"""Modules in which people find the same functions."""
GROUPS: Final = (dist.ProcessGroup, bound.Backend)
STORES: Final = (bound.Store, bound.TCPStore, bound.PrefixStore, bound.FileStore, bound.HashStore)
MADE: Final = ("TCPStore", "ProcessGroupGloo", "ProcessGroupNCCL")
"""Classes of which nobody else makes one, as far as this torch has them."""
Function = Callable[..., Any]


class LinkGuard:
    """On within a `with` block. `told` hears of each refusal; `where` says rank and step for its message."""

    def __init__(self, where: Callable[[], str], told: Callable[[DirectCommunicationError], None]) -> None:
        self._where, self._told = where, told
        self._first: DirectCommunicationError | None = None
        self._replaced: list[tuple[Any, str, Any]] = []
        self._known: set[str] = set()

    def check(self) -> None:
        """Raise what was refused first, if somebody has caught it."""
        if self._first is not None:
            raise self._first

    def __enter__(self) -> Self:
        made: dict[int, Function] = {}
        for owner, name, shown in _entries():
            before = getattr(owner, name)
            # torch compares functions (what is sent, what is received), so one function stays one in both modules
            guarded = made.setdefault(id(before), self._guarded(shown, before))
            self._replaced.append((owner, name, vars(owner)[name]))
            setattr(owner, name, guarded)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._replaced:
            owner, name, before = self._replaced.pop()
            setattr(owner, name, before)

    def _guarded(self, shown: str, function: Function) -> Function:
        # on the way of every collective of torch: a quarter of a microsecond each, where inspect takes a hundred
        frame, known = sys._getframe, self._known  # noqa: SLF001 - see above

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            # nobody has called what a thread of C was begun with
            above = frame().f_back
            caller = above.f_globals.get("__name__", "") if above is not None else ""
            if caller not in known:
                self._judge(shown, caller)
            return function(*given, **named)

        return call

    def _judge(self, shown: str, caller: str) -> None:
        if caller.startswith(ALLOWED):
            self._known.add(caller)
            return
        error = DirectCommunicationError(
            f"{self._where()}: {caller or 'a nameless module'} called {shown}; links belong to the layers of the rank,"
            " and what a task may do with them is said by its rules"
        )
        self._first = self._first or error
        self._told(error)
        raise error


def _entries() -> Iterator[tuple[Any, str, str]]:
    """Owner, name, and what people call it."""
    shown = dict(_functions())
    for module in SHOWING:
        for name, value in list(vars(module).items()):
            if _is_function(value) and value in shown:
                yield module, name, shown[value]
    yield remote, "init_rpc", "torch.distributed.rpc.init_rpc"
    yield dist, "rendezvous", "torch.distributed.rendezvous"
    for owner in (*GROUPS, *STORES):
        yield from ((owner, name, f"{owner.__name__}.{name}") for name in _methods(owner))
    yield meshes.DeviceMesh, "__init__", "DeviceMesh"
    for name in MADE:
        if hasattr(bound, name):
            yield getattr(bound, name), "__init__", name


def _functions() -> Iterator[tuple[Function, str]]:
    """Functions that make links, use them or hand them out, and what people call them."""
    for name in (*c10d.__all__, *PRIVATE):
        value = vars(c10d).get(name, vars(dist).get(name))
        if _is_function(value) and _uses(name):
            yield value, f"torch.distributed.{name}"
    yield meshes.init_device_mesh, "torch.distributed.init_device_mesh"
    for module in (functional, differentiable.functional):
        for name, value in vars(module).items():
            own = _is_function(value) and value.__module__ == module.__name__
            if own and not name.startswith(("_", "legacy_")):
                yield value, f"{module.__name__}.{name}"


def _methods(owner: type) -> list[str]:
    called = [name for name, value in vars(owner).items() if callable(value) and not isinstance(value, type)]
    return [name for name in called if name not in ASKS and _uses(name)]


def _uses(name: str) -> bool:
    return name in HANDS_OUT or not name.startswith(ASKING)


def _is_function(value: Any) -> TypeGuard[Function]:
    # torch's compiler looks into the modules of links too: what is no function must stay what it is
    return type(value) in (FunctionType, BuiltinFunctionType)
