"""Builds the process groups of a plan over the attempt's store, and destroys them in bounded time.

Takes topology only from the plan it was assigned; never reconnects by itself and never picks ranks.
"""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore  # torch.distributed has them, but not for type checkers

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import ConflictError
from kuangchao_contracts.ports.topology import BuildRequest, LinkReport, TopologyRank
from kuangchao_contracts.run import Ack, Empty
from kuangchao_worker.layers.topology.decide import WORLD, GroupSpec, build_order, groups_of
from kuangchao_worker.pod.network import GLOO_VARIABLE, gloo_interface, wait_for_port

DESTROY_SECONDS: Final = 5.0
COLLECTIVE_SECONDS: Final = 1_800


class TopologyService(TopologyRank):
    """Links of one rank in one attempt."""

    def __init__(self, plan_hash: str, attempt: int, stop: Callable[[], bool] = lambda: False) -> None:
        self._plan_hash, self._attempt, self._stop = plan_hash, attempt, stop

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
        self._build_world(request)
        for spec in order:
            _build_groups(spec, request.plan.world_size)
        return LinkReport(groups=tuple(spec.name for spec in order), healthy=True)

    def _build_world(self, request: BuildRequest) -> None:
        timeout = timedelta(seconds=request.timeout_seconds)
        store = TCPStore(
            request.master_host, request.master_port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        interface = gloo_interface(os.environ, request.master_host, request.master_port)
        if interface is not None:
            os.environ[GLOO_VARIABLE] = interface
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(request.store_prefix, store),
            rank=request.rank,
            world_size=request.plan.world_size,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )

    def destroy(self, capability: Capability, request: Empty) -> Ack:  # noqa: ARG002
        """See TopologyRank."""
        if not dist.is_initialized():
            return Ack(detail="there were no links")
        # torch's teardown may wait for a dead peer without limit, and a thread is the only way to stop waiting
        worker = threading.Thread(target=dist.destroy_process_group, name="destroy-links", daemon=True)
        worker.start()
        worker.join(DESTROY_SECONDS)
        return Ack(detail="gave up waiting for a peer" if worker.is_alive() else "links destroyed")


def _build_groups(spec: GroupSpec, world_size: int) -> None:
    """Make the groups of an axis; every rank takes part in making each. One as wide as the world is the world."""
    if spec.name == WORLD or len(spec.members[0]) in (1, world_size):
        return
    for ranks in spec.members:
        dist.new_group(list(ranks), group_desc=f"{spec.name}:{ranks[0]}")
