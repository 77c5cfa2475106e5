"""What ranks send each other with and without the compression plug-in: bytes that the kernel sent, by turns in one run.

Ranks on one machine over gloo. Each keeps two copies of a model, one behind the plug-in, and trains them in alternating
blocks, so that both meet the same machine. On loopback bytes cost next to nothing: time there is the price of coding.
"""

import multiprocessing
import os
import socket
import stat
import statistics
import struct
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from bench.figures import Bound, Figure

TIMEOUT: Final = 180
WARM_UP: Final = 2
WIDTH: Final = 768
METHODS: Final[dict[str, tuple[dict[str, str], float]]] = {
    "bf16": ({"method": "bf16"}, 2.0),
    "int8": ({"method": "int8"}, 4.0),
    "top 1.56 % + int8": ({"method": "topk", "fraction": "0.0156"}, 51.0),
}
"""Options, and how many times fewer bytes a payload has than its gradient in fp32, rounded."""
_BYTES_SENT: Final = 200
"""Offset of tcpi_bytes_sent in Linux's struct tcp_info (linux/tcp.h)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps of one side, as one rank saw them: bytes sent and seconds, per step."""

    sent: float
    seconds: float


def sent_bytes() -> int:
    """Bytes that this process has sent over the TCP connections that it has now, by the kernel's count."""
    return sum(_sent(int(path.name)) for path in Path("/proc/self/fd").iterdir())


def _sent(descriptor: int) -> int:
    """0 for whatever is no TCP connection, or is gone by now (the listing's own descriptor is)."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                return 0
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0
    return int(struct.unpack_from("=Q", info, _BYTES_SENT)[0])


def measure(quick: bool = False) -> list[Figure]:
    """Two ranks for every method, and four to show what gathering costs."""
    blocks, steps = (2, 1) if quick else (4, 2)
    cases = [(name, ranks) for ranks in (2, 4) for name in METHODS]
    return [figure for name, ranks in cases for figure in _figures(name, ranks, *_run(name, ranks, blocks, steps))]


def _figures(name: str, ranks: int, plain: list[Block], coded: list[Block]) -> list[Figure]:
    options, promised = METHODS[name]
    # payloads that are added up travel as gradients do; others go to every rank, see proposal 0006
    wanted = promised if options["method"] == "bf16" else promised * 2 / ranks
    sent = [statistics.median(block.sent for block in side) for side in (plain, coded)]
    seconds = statistics.median(c.seconds / p.seconds for p, c in zip(plain, coded, strict=True))
    where = f"{name}, {ranks} ranks"
    note = f"{sent[0] / 1e6:.2f} MB a step and rank without, {sent[1] / 1e6:.2f} with"
    return [
        Figure("compression", f"bytes sent / with plug-in, {where}", round(sent[0] / sent[1], 2), "",
               Bound.AT_LEAST, round(0.95 * wanted, 2), note),
        Figure("compression", f"step on loopback / without, {where}", round(seconds, 3), ""),
    ]  # fmt: skip


def _run(name: str, ranks: int, blocks: int, steps: int) -> tuple[list[Block], list[Block]]:
    """Blocks without and with the plug-in, as rank 0 saw them."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.SimpleQueue()
        members = [
            context.Process(target=_rank, args=(rank, ranks, Path(folder), METHODS[name][0], blocks, steps, answers))
            for rank in range(ranks)
        ]
        for member in members:
            member.start()
        try:
            deadline = time.monotonic() + TIMEOUT
            for member in members:
                member.join(max(0.0, deadline - time.monotonic()))
                if member.exitcode != 0:
                    raise RuntimeError(f"{name}: a rank ended with {member.exitcode}")
            found: tuple[list[Block], list[Block]] = answers.get()
        finally:
            for member in members:
                member.kill()
        return found


def _rank(rank: int, ranks: int, folder: Path, options: dict[str, str], blocks: int, steps: int, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    sides = [_Side(None), _Side(options)]
    for side in sides:
        side.train(WARM_UP)
    found: tuple[list[Block], list[Block]] = ([], [])
    for number in range(blocks):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            dist.barrier()
            before, began = sent_bytes(), time.perf_counter()
            sides[place].train(steps)
            seconds = time.perf_counter() - began
            dist.barrier()
            found[place].append(Block((sent_bytes() - before) / steps, seconds / steps))
    if rank == 0:
        answers.put(found)
    dist.destroy_process_group()


class _Side:
    """A model of square layers under a store as a rank has it; the plug-in is called directly, without a gate."""

    def __init__(self, options: dict[str, str] | None) -> None:
        import torch
        from torch import nn

        from kuangchao_worker.layers.state.parameters import ParameterStore

        torch.manual_seed(0)
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        store = ParameterStore(module, torch.optim.SGD(module.parameters(), lr=1e-3), None)
        self._store: Any = store if options is None else _plugged(store, options)
        self._store.connect()
        self._inputs = torch.randn(8, WIDTH)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            with self._store.reduction(last=True):
                self._store.compute(lambda module, given: module(given).square().mean(), self._inputs).backward()
            self._store.apply()


def _plugged(store: Any, options: dict[str, str]) -> Any:
    from kuangchao_compression.plugin import compression
    from kuangchao_contracts.capability import Capability
    from kuangchao_contracts.plugins import PluginChoice
    from kuangchao_worker.layers.state.plugged import PluggedStore
    from kuangchao_worker.plugins.service import PluginService

    service = PluginService(PluginChoice(name="compression", options=options), compression(options))
    right = Capability.model_construct()
    return PluggedStore(store, service, lambda op, request: getattr(service, op.split(".")[1])(right, request))
