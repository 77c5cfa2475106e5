"""What building the links of a plan costs: 64 ranks in one box against torch's own mesh, and the order of 16,384 ranks.

The ranks are forks of one warm process, so that 64 of them fit into memory, and build by turns: links of ours, a mesh
of torch's, each over a store of its own. A round ends when the last rank has built.
"""

import contextlib
import multiprocessing
import os
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from bench.figures import Bound, Figure
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.plan import Axis, AxisGroups, ParallelPlan
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_contracts.run import Empty
from kuangchao_worker.layers.topology.decide import build_order, digest, groups_of
from kuangchao_worker.pod.store import open_store

RATIO: Final = 2.0
"""How much longer than torch's own mesh our links may take."""
ORDER_SECONDS: Final = 2.0
PATIENCE: Final = 300.0
PRELOAD: Final = ["torch", "torch.distributed.device_mesh", "kuangchao_worker.layers.topology.service"]
BOX: Final = {"tensor": 4, "data": 4, "pipeline": 4}
LARGE: Final = {"tensor": 8, "data": 128, "pipeline": 16}
OURS, THEIRS = "ours", "theirs"


def figures(quick: bool = False) -> list[Figure]:
    """Group creation by turns, and the order of the groups of a large plan."""
    plan = plan_of({"tensor": 2, "data": 2} if quick else BOX)
    rounds = [(ours, theirs) for ours, theirs in _rounds(plan, 1 if quick else 5)]
    ratios = [ours / theirs for ours, theirs in rounds]
    spread = f"{len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f}"
    ours, theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
    ranks = f"{plan.world_size} ranks"
    seconds, size = order_seconds(plan_of(LARGE)), 8 * 128 * 16
    return [
        Figure("worker", f"groups / init_device_mesh, {ranks}", round(statistics.median(ratios), 3), "",
               Bound.AT_MOST, RATIO, spread),
        Figure("worker", f"groups of a plan, {ranks}", round(ours, 2), "s", note=f"init_device_mesh {theirs:.2f} s"),
        Figure("worker", f"order and digest of links, {size:,} ranks", round(seconds, 3), "s",
               Bound.AT_MOST, ORDER_SECONDS),
    ]  # fmt: skip


def plan_of(axes: dict[str, int]) -> ParallelPlan:
    """A plan over these axes, innermost first."""
    groups, stride = [], 1
    for name, size in axes.items():
        groups.append(AxisGroups(axis=Axis(name), size=size, stride=stride))
        stride *= size
    return ParallelPlan.model_validate(
        {
            "world_size": stride, "per_pod": 1, "pods": stride, "micro_batch": 1, "memory_checked": False,
            "accumulation_steps": axes.get("pipeline", 1), "device_memory_bytes": 0, "request_digest": "0" * 64,
            "global_batch": axes["data"] * axes.get("pipeline", 1), "groups": tuple(groups), **axes,
        }
    )  # fmt: skip


def order_seconds(plan: ParallelPlan) -> float:
    """CPU seconds that a rank needs to know what to build with whom: median of three."""
    took = []
    for _ in range(3):
        start = time.process_time()
        digest(build_order(groups_of(plan)))
        took.append(time.process_time() - start)
    return statistics.median(took)


def _rounds(plan: ParallelPlan, count: int) -> Iterator[tuple[float, float]]:
    """Seconds of either side, round by round; who goes first alternates. The first round is not counted."""
    with _ranks(plan) as pipes:
        for number in range(count + 1):
            took = {side: _round(pipes, side) for side in ((OURS, THEIRS) if number % 2 else (THEIRS, OURS))}
            if number:
                yield took[OURS], took[THEIRS]


@contextlib.contextmanager
def _ranks(plan: ParallelPlan) -> Iterator[list[Connection]]:
    """Processes that wait to build, by rank."""
    # ranks that wait for the others look up each second, and torch would write of each time, as it does not in a pod
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # torch's store asks DNS for the names of its clients, and answers nobody while it waits: 5 s, where DNS is lame
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    pipes, members = [], []
    try:
        for rank in range(plan.world_size):
            mine, theirs = context.Pipe()
            member = context.Process(target=_serve, args=(theirs, rank, plan), daemon=True)
            member.start()
            theirs.close()
            pipes.append(mine)
            members.append(member)
        _answers(pipes)
        yield pipes
    finally:
        for member in members:
            member.kill()
            member.join(10)


def _round(pipes: Sequence[Connection], side: str) -> float:
    """Seconds until all have built; they end what they built before this returns."""
    store = open_store(secrets.randbelow(1 << 30) + 1)
    start = time.perf_counter()
    for pipe in pipes:
        pipe.send((side, store.port, store.prefix))
    _answers(pipes)
    seconds = time.perf_counter() - start
    for pipe in pipes:
        pipe.send(None)
    _answers(pipes)
    store.close()
    return seconds


def _answers(pipes: Sequence[Connection]) -> None:
    """Wait for a word of each. Raises RuntimeError with the first that is none of success, or when one is silent."""
    waiting, deadline = set(pipes), time.monotonic() + PATIENCE
    while waiting:
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RuntimeError(f"{len(waiting)} of {len(pipes)} ranks are silent")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            said = pipe.recv()
            if said != "":
                raise RuntimeError(said)
            waiting.discard(pipe)


def _serve(pipe: Connection, rank: int, plan: ParallelPlan) -> None:
    import torch

    torch.set_num_threads(1)
    pipe.send("")
    with contextlib.suppress(EOFError):
        while True:
            side, port, prefix = pipe.recv()
            end = None
            try:
                end = _build(plan, rank, port, prefix) if side == OURS else _mesh(plan, rank, port, prefix)
                pipe.send("")
            except Exception as error:  # noqa: BLE001 - told, and measured no further
                pipe.send(f"rank {rank}: {type(error).__name__}: {error}")
            pipe.recv()
            if end is not None:
                end()
            pipe.send("")


def _build(plan: ParallelPlan, rank: int, port: int, prefix: str) -> Any:
    from kuangchao_worker.layers.topology.service import TopologyService

    right = Capability.model_construct(claims=Claims.model_construct(rank=rank))
    topology = TopologyService(plan.hash, 1)
    request = BuildRequest(
        plan=plan, attempt=1, rank=rank, master_host="127.0.0.1", master_port=port, store_prefix=prefix
    )
    topology.build(right, request)
    return lambda: topology.destroy(right, Empty())


def _mesh(plan: ParallelPlan, rank: int, port: int, prefix: str) -> Any:
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore
    from torch.distributed.device_mesh import init_device_mesh

    timeout = timedelta(seconds=PATIENCE)
    server = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout, wait_for_workers=False)
    dist.init_process_group(
        "gloo", store=PrefixStore(prefix, server), rank=rank, world_size=plan.world_size, timeout=timeout
    )
    outer_first = plan.groups[::-1]
    init_device_mesh("cpu", tuple(g.size for g in outer_first), mesh_dim_names=tuple(g.axis.value for g in outer_first))
    return dist.destroy_process_group
