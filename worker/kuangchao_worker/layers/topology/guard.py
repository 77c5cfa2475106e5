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
from types import TracebackType
from typing import Any, Final, Self

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch._C._distributed_c10d import (  # torch.distributed has them, but not for type checkers
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed import distributed_c10d as c10d

from kuangchao_contracts.errors import DirectCommunicationError

ALLOWED: Final = ("torch.", "kuangchao_worker.layers.", "kuangchao_worker.parallel.", "kuangchao_worker.rank.")
QUERIES: Final = frozenset(
    {
        "get_backend", "get_backend_config", "get_backend_impl", "get_default_backend_for_device", "get_global_rank",
        "get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank",
        "get_world_size", "is_backend_available", "is_gloo_available", "is_initialized", "is_mpi_available",
        "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available", "supports_complex",
    }
)  # fmt: skip
"""Functions that only ask."""
PRIVATE: Final = ("_get_default_group", "_get_default_store", "_get_process_group_store", "_coalescing_manager")
COLLECTIVES: Final = (
    "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced",
    "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "get_group_store", "monitored_barrier", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced", "scatter", "send", "split_group",
    "_allgather_base", "_reduce_scatter_base",
)  # fmt: skip
"""Methods of a process group that use it, or hand out its store."""
KEYS: Final = (
    "add", "append", "barrier", "check", "clone", "compare_set", "delete_key", "get", "list_keys", "multi_get",
    "multi_set", "num_keys", "queue_pop", "queue_push", "set", "wait",
)  # fmt: skip
"""Methods of a store."""
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
            caller = frame(1).f_globals.get("__name__", "")
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
    functions = [name for name in c10d.__all__ if _is_function(c10d, name) and name not in QUERIES]
    for name in (*functions, *PRIVATE):
        for module in (dist, c10d):
            if name in vars(module):
                yield module, name, f"torch.distributed.{name}"
    yield from ((dist, name, f"torch.distributed.{name}") for name in ("init_device_mesh", "rendezvous"))
    for module in (functional, differentiable):
        for name in vars(module).copy():
            if not name.startswith(("_", "legacy_")) and _is_own_function(module, name):
                yield module, name, f"{module.__name__}.{name}"
    for name in COLLECTIVES:
        if name in vars(dist.ProcessGroup):
            yield dist.ProcessGroup, name, f"ProcessGroup.{name}"
    for store in (Store, TCPStore, PrefixStore, FileStore, HashStore):
        for name in KEYS:
            if name in vars(store):
                yield store, name, f"{store.__name__}.{name}"
    yield TCPStore, "__init__", "TCPStore"


def _is_function(module: Any, name: str) -> bool:
    return name in vars(module) and callable(vars(module)[name]) and not isinstance(vars(module)[name], type)


def _is_own_function(module: Any, name: str) -> bool:
    return _is_function(module, name) and getattr(vars(module)[name], "__module__", "") == module.__name__
