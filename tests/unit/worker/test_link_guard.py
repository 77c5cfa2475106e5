"""Links are used by torch and the layers alone: any other call of `torch.distributed` is refused, told, remembered."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.device_mesh import init_device_mesh
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
    "TCPStore": lambda: TCPStore("127.0.0.1", 1, 1, False),
}
"""What a task must not do, by the name that its error gives."""


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Links of a rank that is alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def guarded(told: list[DirectCommunicationError]) -> LinkGuard:
    return LinkGuard(lambda: "rank 5, step 8", told.append)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_task_is_refused_told_and_not_forgotten(name: str) -> None:
    told: list[DirectCommunicationError] = []
    with guarded(told) as guard:
        guard.check()
        with pytest.raises(DirectCommunicationError, match=f"rank 5, step 8: {__name__} called {name};") as first:
            CALLS[name]()
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
        guard.check()


def test_hooks_of_torch_communicate_within_the_forward_pass_of_a_task() -> None:
    told: list[DirectCommunicationError] = []
    mesh = init_device_mesh("cpu", (1,))
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
