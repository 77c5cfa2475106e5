"""A long-lived pool of rank processes for all cases that need real links, each case over a store of its own."""

import contextlib
import itertools
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_contracts.run import Empty
from kuangchao_worker.pod.store import AttemptStore, open_store

PATIENCE = 400.0
"""Limit of a case. It bounds a hang and is no claim about speed."""
AFTER_A_FAILURE = 10.0
"""Seconds for the others once a rank has failed: most then wait for it in vain."""
PRELOAD = ["torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "kuangchao_worker.rank.wiring"]


class Seat(NamedTuple):
    """What a rank process needs to build its links."""

    rank: int
    world: int
    attempt: int
    port: int
    prefix: str

    @property
    def capability(self) -> Capability:
        """The right of this rank."""
        return Capability.model_construct(claims=Claims.model_construct(rank=self.rank))

    def request(self, plan: ParallelPlan, timeout: int = 60) -> BuildRequest:
        """Build this plan."""
        return BuildRequest(
            plan=plan,
            attempt=self.attempt,
            rank=self.rank,
            master_host="127.0.0.1",
            master_port=self.port,
            store_prefix=self.prefix,
            timeout_seconds=timeout,
        )


class RankFailedError(Exception):
    """A case raised in a rank; the message has its traceback."""


class Gang:
    """Processes by rank; made as they are needed and ended with the pool."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._members: list[tuple[Any, Connection]] = []
        self._attempts = itertools.count(1)

    def run(self, world: int, case: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `case(seat, *arguments)` returns on each rank. Raises RankFailedError if one raises or is silent."""
        store = self._open(world)
        try:
            for rank in range(world):
                seat = Seat(rank, world, *self._place(store))
                self._members[rank][1].send((case, seat, arguments))
            return self._collect(world)
        finally:
            store.close()

    def _open(self, world: int) -> AttemptStore:
        while len(self._members) < world:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))
        self._attempt = next(self._attempts)
        return open_store(self._attempt)

    def _place(self, store: AttemptStore) -> tuple[int, int, str]:
        return self._attempt, store.port, store.prefix

    def _collect(self, world: int) -> list[Any]:
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._members[:world])}
        answers = dict.fromkeys(range(world), (False, "silent"))
        patience = PATIENCE
        while pipes and (ready := wait(pipes, patience)):
            for pipe in ready:
                rank = pipes.pop(pipe)
                answers[rank] = pipe.recv()
                patience = patience if answers[rank][0] else AFTER_A_FAILURE
        failures = [f"rank {rank}: {answer}" for rank, (fine, answer) in answers.items() if not fine]
        if failures:
            self.close()  # a rank may still wait for the one that failed
            raise RankFailedError("\n".join(failures))
        return [answer for _, answer in answers.values()]

    def close(self) -> None:
        """End all processes."""
        members, self._members = self._members, []
        for process, pipe in members:
            pipe.close()
            process.kill()
            process.join(10)


def built(seat: Seat, plan: ParallelPlan, case: Callable[..., Any], *arguments: Any) -> Any:
    """Run `case(seat, mesh, plan, *arguments)` over the links of a plan, which are destroyed after."""
    from kuangchao_worker.layers.topology.service import TopologyService

    topology = TopologyService(plan.hash, seat.attempt)
    topology.build(seat.capability, seat.request(plan))
    try:
        return case(seat, topology.mesh, plan, *arguments)
    finally:
        topology.destroy(seat.capability, Empty())


def _serve(pipe: Connection) -> None:
    import torch
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with contextlib.suppress(EOFError):
        while True:
            case, seat, arguments = pipe.recv()
            # torch remembers meshes of cases before, whose groups are gone, and takes equal ones for the same
            _clear_sharding_prop_cache()
            try:
                pipe.send((True, case(seat, *arguments)))
            except Exception:  # noqa: BLE001 - whatever it is, the test is told
                pipe.send((False, traceback.format_exc()))
