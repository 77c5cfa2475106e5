"""Builds the process groups of a plan over the attempt's store, and destroys them in bounded time.

Takes topology only from the plan it was assigned; never reconnects by itself and never picks ranks.
"""

import os
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore  # torch.distributed has them, but not for type checkers
from torch.distributed.device_mesh import DeviceMesh

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import ConflictError
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.ports.topology import BuildRequest, LinkReport, TopologyRank
from kuangchao_contracts.run import Ack, Empty
from kuangchao_worker.layers.topology.decide import (
    WORLD,
    GroupSpec,
    build_order,
    digest,
    dimensions,
    groups_of,
)
from kuangchao_worker.layers.topology.network import interface_variables, wait_for_port
from kuangchao_worker.layers.topology.rendezvous import meet
from kuangchao_worker.parallel.dimensions import COPIES, EXPERT

DESTROY_SECONDS: Final = 5.0
COLLECTIVE_SECONDS: Final = 1_800


class TopologyService(TopologyRank):
    """Links of one rank in one attempt."""

    def __init__(self, plan_hash: str, attempt: int, stop: Callable[[], bool] = lambda: False) -> None:
        self._plan_hash, self._attempt, self._stop = plan_hash, attempt, stop
        self.mesh: DeviceMesh | None = None
        """The axes of the plan over the groups that were built; None before, and when the rank is alone."""
        self.groups: Mapping[str, dist.ProcessGroup] = {}
        """All groups of this rank, those beside the mesh too; none before they are built."""
        self.experts: DeviceMesh | None = None
        """Ranks that have the same experts x ranks that divide them, beside the mesh; None where nobody divides any."""

    def build(self, capability: Capability, request: BuildRequest) -> LinkReport:
        """See TopologyRank."""
        capability.require_ranks([request.rank])
        if request.attempt != self._attempt or request.plan.hash != self._plan_hash:
            raise ConflictError(
                f"build for attempt {request.attempt} and plan {request.plan.hash[:8]}, but this rank "
                f"belongs to attempt {self._attempt} and plan {self._plan_hash[:8]}"
            )
        if dist.is_initialized():
            raise ConflictError("the links of this attempt exist already")
        order = build_order(groups_of(request.plan))
        wait_for_port(request.master_host, request.master_port, request.timeout_seconds, self._stop)
        self._build_world(request, f"plan {request.plan.hash} attempt {request.attempt} groups {digest(order)}")
        self.groups = {spec.name: _build_group(spec, request) for spec in order}
        self.mesh, self.experts = _mesh(request.plan, self.groups), _experts(self.groups, request.rank)
        return LinkReport(groups=tuple(spec.name for spec in order), healthy=True)

    def _build_world(self, request: BuildRequest, identity: str) -> None:
        timeout = timedelta(seconds=request.timeout_seconds)
        server = TCPStore(
            request.master_host, request.master_port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        store = PrefixStore(request.store_prefix, server)
        world = request.plan.world_size
        meet(store, identity, request.rank, world, request.timeout_seconds, self._stop)
        nccl = torch.cuda.is_available()
        os.environ |= interface_variables(os.environ, request.master_host, request.master_port, nccl=nccl)
        backend = "nccl" if nccl else "gloo"
        dist.init_process_group(backend, store=store, rank=request.rank, world_size=world, timeout=timeout)

    def destroy(self, capability: Capability, request: Empty) -> Ack:  # noqa: ARG002
        """See TopologyRank."""
        if not dist.is_initialized():
            return Ack(detail="there were no links")
        self.mesh, self.groups, self.experts = None, {}, None
        # torch's teardown may wait for a dead peer without limit, and a thread is the only way to stop waiting
        worker = threading.Thread(target=_destroy, name="destroy-links", daemon=True)
        worker.start()
        worker.join(DESTROY_SECONDS)
        return Ack(detail="gave up waiting for a peer" if worker.is_alive() else "links destroyed")


def _destroy() -> None:
    # a call of ours, not one of the threading module: the guard of the links looks at who calls
    dist.destroy_process_group()


def _build_group(spec: GroupSpec, request: BuildRequest) -> dist.ProcessGroup:
    """This rank's group of an axis. Its members alone make it: all of them go through the groups in one order.

    One as wide as the world is the world. What waits for a dead peer gives up at the deadline of building, after which
    the group has the timeout of collectives.
    """
    ranks = next(members for members in spec.members if request.rank in members)
    group: dist.ProcessGroup | int | None = dist.group.WORLD
    if len(ranks) < request.plan.world_size:
        group = dist.new_group(
            list(ranks),
            timeout=timedelta(seconds=request.timeout_seconds),
            use_local_synchronization=True,
            group_desc=f"{spec.name}:{ranks[0]}",
        )
    if not isinstance(group, dist.ProcessGroup):
        raise ConflictError(f"rank {request.rank} is not in its own group {spec.name}")
    dist.set_timeout(timedelta(seconds=COLLECTIVE_SECONDS), group)
    return group


def _mesh(plan: ParallelPlan, groups: Mapping[str, dist.ProcessGroup]) -> DeviceMesh | None:
    """The mesh over groups that exist; it makes none of its own."""
    outer_first = dimensions(plan)[::-1]
    names = tuple(dimension.name for dimension in outer_first)
    kind = _kind()
    if len(names) <= 1:
        return DeviceMesh.from_group(groups[WORLD], kind, mesh_dim_names=names) if names else None
    ranks = torch.arange(plan.world_size).view([dimension.size for dimension in outer_first])
    return DeviceMesh.from_group([groups[name] for name in names], kind, ranks, mesh_dim_names=names)


def _experts(groups: Mapping[str, dist.ProcessGroup], rank: int) -> DeviceMesh | None:
    if EXPERT not in groups:
        return None
    names = tuple(name for name in (*COPIES, EXPERT) if name in groups)
    ranks = torch.tensor(rank)
    for name in names:
        # each is a step of one size from rank to rank, so what differs in all coordinates lies as far as all together
        ranks = ranks.unsqueeze(-1) + torch.tensor(dist.get_process_group_ranks(groups[name])) - rank
    return DeviceMesh.from_group([groups[name] for name in names], _kind(), ranks, mesh_dim_names=names)


def _kind() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
