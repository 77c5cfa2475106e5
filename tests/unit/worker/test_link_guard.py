"""Links are used by torch and the layers alone: any other call of `torch.distributed` is refused, told, remembered."""

import _thread
import time
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, HashStore, ProcessGroupGloo, TCPStore
from torch.distributed import device_mesh, rpc
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from kuangchao_contracts.errors import DirectCommunicationError
from kuangchao_worker.layers.topology.guard import LinkGuard

ONE = torch.ones(2)
# made anew at each call: the functions are others under the guard
# ruff: noqa: PLW0108
CALLS: dict[str, Callable[[], Any]] = {
    "torch.distributed.all_reduce": lambda: dist.all_reduce(ONE),
    "torch.distributed.broadcast_object_list": lambda: dist.broadcast_object_list([1]),
    "torch.distributed.isend": lambda: dist.isend(ONE, 0),
    "torch.distributed.barrier": lambda: dist.barrier(),
    "torch.distributed.new_group": lambda: dist.new_group([0]),
    "torch.distributed.init_process_group": lambda: dist.distributed_c10d.init_process_group("gloo"),
    "torch.distributed.destroy_process_group": lambda: dist.destroy_process_group(),
    "torch.distributed.init_device_mesh": lambda: dist.init_device_mesh("cpu", (1,)),
    "torch.distributed._functional_collectives.all_reduce": lambda: dist._functional_collectives.all_reduce(
        ONE, "sum", [0]
    ),
    "torch.distributed.nn.functional.all_reduce": lambda: dist.nn.functional.all_reduce(ONE),
    "torch.distributed._get_default_store": lambda: dist.distributed_c10d._get_default_store().check(["key"]),
    "ProcessGroup.allreduce": lambda: dist.group.WORLD.allreduce([ONE]),  # type: ignore[union-attr]  # there is one
    "ProcessGroup.get_group_store": lambda: dist.group.WORLD.get_group_store(),  # type: ignore[union-attr]  # there is one
    "ProcessGroup.all_gather_single": lambda: dist.group.WORLD.all_gather_single(ONE, ONE),  # type: ignore[union-attr]  # as above
    "Backend.allreduce": lambda: backend().allreduce([ONE]),
    "TCPStore": lambda: TCPStore("127.0.0.1", 1, 1, False),
    "ProcessGroupGloo": lambda: ProcessGroupGloo(FileStore("/dev/null", 1), 0, 1),
    "DeviceMesh": lambda: device_mesh.DeviceMesh("cpu", [0]),
    "torch.distributed.rpc.init_rpc": lambda: rpc.init_rpc("here", rank=0, world_size=1),  # type: ignore[no-untyped-call]  # torch has no types here
    "torch.distributed._all_gather_base": lambda: dist._all_gather_base(ONE, ONE),  # type: ignore[attr-defined]  # is there
}
"""What a task must not do, by the name that its error gives."""


ELSEWHERE: dict[str, Callable[[], Any]] = {
    "torch.distributed.init_device_mesh": lambda: device_mesh.init_device_mesh("cpu", (1,)),
    "torch.distributed.new_group": lambda: device_mesh.new_group([0]),  # type: ignore[attr-defined]  # is there
    "torch.distributed.nn.functional.all_reduce": lambda: dist.nn.all_reduce(ONE),  # type: ignore[no-untyped-call]  # as above
}
"""The same where torch's own documentation imports them from."""


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]  # there is one


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Links of a rank that is alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def guarded(told: list[DirectCommunicationError]) -> LinkGuard:
    return LinkGuard(lambda: "rank 5, step 8", told.append)


@pytest.mark.parametrize(("name", "call"), [*CALLS.items(), *ELSEWHERE.items()])
def test_a_call_of_a_task_is_refused_told_and_not_forgotten(name: str, call: Callable[[], Any]) -> None:
    told: list[DirectCommunicationError] = []
    with guarded(told) as guard:
        guard.check()
        with pytest.raises(DirectCommunicationError, match=f"rank 5, step 8: {__name__} called {name};") as first:
            call()
        with pytest.raises(DirectCommunicationError):
            dist.barrier()
        with pytest.raises(DirectCommunicationError) as again:
            guard.check()
    assert again.value is first.value is told[0]
    assert len(told) == 2


def test_functions_that_were_taken_by_name_are_the_guarded_ones() -> None:
    """A task is imported under the guard, so what it imports from torch is what it finds there."""
    with guarded([]), pytest.raises(DirectCommunicationError, match=r"mytask called torch\.distributed\.barrier"):
        exec("from torch.distributed import barrier\nbarrier()", {"__name__": "mytask"})


def test_asking_is_free() -> None:
    with guarded([]) as guard:
        assert (dist.is_initialized(), dist.get_rank(), dist.get_world_size()) == (True, 0, 1)
        assert (dist.group.WORLD.rank(), dist.group.WORLD.size()) == (0, 1)  # type: ignore[union-attr]  # there is one
        assert (backend().rank(), dist.get_process_group_ranks(dist.group.WORLD)) == (0, [0])
        dist.distributed_c10d.get_debug_level()
        guard.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_thread_that_begins_with_a_call_is_refused_as_well() -> None:
    """Nobody has called it: there is no frame of Python above."""
    told: list[DirectCommunicationError] = []
    with guarded(told) as guard:
        _thread.start_new_thread(dist.barrier, ())
        while not told:
            time.sleep(0.001)
        with pytest.raises(DirectCommunicationError, match=r"a nameless module called torch\.distributed\.barrier"):
            guard.check()


def test_nothing_but_functions_is_replaced() -> None:
    """torch's compiler finds a type by its name in these modules, and cannot do without it."""
    modules = (dist, dist.distributed_c10d, device_mesh, dist._functional_collectives, dist.nn, dist.nn.functional)
    before = {(module, name): value for module in modules for name, value in vars(module).items()}
    with guarded([]):
        replaced = [value for (module, name), value in before.items() if vars(module)[name] is not value]
    assert len(replaced) > 100
    assert {type(value) for value in replaced} <= {FunctionType, BuiltinFunctionType}


def test_hooks_of_torch_communicate_within_the_forward_pass_of_a_task() -> None:
    told: list[DirectCommunicationError] = []
    mesh = device_mesh.init_device_mesh("cpu", (1,))
    with guarded(told):
        for model in (fully_shard(nn.Linear(2, 2), mesh=mesh), DistributedDataParallel(nn.Linear(2, 2))):
            model(torch.ones(1, 2)).sum().backward()
            assert all(p.grad is not None for p in model.parameters())
    assert told == []


def test_what_is_sent_and_received_is_named_by_functions_of_torch() -> None:
    """Pipelines name them as `torch.distributed` has them at that moment, and torch compares."""
    with guarded([]):
        assert dist.isend is dist.distributed_c10d.isend
        dist.P2POp(dist.irecv, ONE, group=dist.group.WORLD, group_peer=0)


def test_afterwards_all_is_as_it_was() -> None:
    before = (dist.all_reduce, dist.ProcessGroup.allreduce, TCPStore.__init__)
    with guarded([]):
        assert dist.all_reduce is not before[0]
    assert (dist.all_reduce, dist.ProcessGroup.allreduce, TCPStore.__init__) == before
    for name in ("torch.distributed.all_reduce", "ProcessGroup.allreduce", "torch.distributed._get_default_store"):
        CALLS[name]()
