"""Parameters whose gradients pass through a plug-in on their way to the other ranks, with the plug-in's memory in the
checkpoint. Wraps a `ParameterStore`, which knows nothing of it: a job without plug-in has none of this.

State alone holds the process group. It hands values to the plug-in and sends what comes back: adds payloads up on the
way where that is allowed, else gives each rank those of all and adds up what they decode to, in the order of ranks.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, as type checkers know it
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import ConflictError, InvalidInputError
from kuangchao_contracts.ports.plugin import MemoryAt, OpenStep, StepTraffic
from kuangchao_worker.layers.state.calling import Function
from kuangchao_worker.layers.state.files import in_memory
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.seal import Owned
from kuangchao_worker.layers.state.source import Source, memory_file
from kuangchao_worker.parallel import comparing

log = logging.getLogger(__name__)
Call = Callable[[str, Contract], Contract]
_MEMORY: Final = re.compile(r"plugin-(\d+)\.pt")


class Plugin(Protocol):
    """What state sees of a plug-in, beside what it asks for through the gate."""

    plugin: str
    summable: bool

    def digest(self, elements: Mapping[str, int]) -> bytes: ...
    def expect(self, elements: Mapping[str, int]) -> None: ...
    def encode(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
    def decode(self, payload: torch.Tensor, elements: int) -> torch.Tensor: ...
    def memory(self) -> Mapping[str, torch.Tensor]: ...
    def remember(self, memory: Mapping[str, torch.Tensor]) -> None: ...


class PluggedStore:
    """A store with a plug-in before it. `call` leads through the rank's gate."""

    def __init__(self, store: ParameterStore, plugin: Plugin, call: Call) -> None:
        self._store, self._plugin, self._call = store, plugin, call
        self.module, self.elements, self.rule = store.module, store.elements, store.rule
        self.hyperparameters = store.hyperparameters
        self._names = {id(p): name for name, p in store.module.named_parameters() if p.requires_grad}
        self._step = 0
        self._world = 1
        self._agreed: set[str] = set()
        """First parameters of the buckets whose payloads have been found alike on all ranks."""
        self.traffic = StepTraffic(gradient_bytes=0, coded_bytes=0)
        """What passed through the plug-in before the present step."""

    def compression(self) -> float:
        """How many times fewer bytes the plug-in has made of this rank's gradients so far; 0 before it made any."""
        return self.traffic.gradient_bytes / self.traffic.coded_bytes if self.traffic.coded_bytes else 0.0

    def connect(self, mesh: DeviceMesh | None = None, experts: DeviceMesh | None = None) -> None:
        """As the store; gradients pass through the plug-in from now on. Raises ConflictError where ranks differ."""
        self._store.connect(mesh, experts)
        self._world = dist.get_world_size()
        sizes = {name: p.numel() for name, p in self.module.named_parameters() if p.requires_grad}
        self._agree(self._plugin.digest(sizes), "version, options or parameters", "all pods must have the same image")
        self._plugin.expect(sizes)
        wrapped = self._store.wrapped
        if isinstance(wrapped, DistributedDataParallel):
            self._store.taken = f"plug-in {self._plugin.plugin}"
            wrapped.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def _agree(self, digest: bytes, what: str, why: str) -> None:
        (others,) = comparing.others([digest], next(self.module.parameters()).device)
        if others:
            raise ConflictError(
                f"plug-in {self._plugin.plugin}: {what} of ranks {others} are not those of rank 0; {why}"
            )

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, gradients = bucket.buffer(), bucket.gradients()
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        if buffer.layout is not torch.strided:
            why = f"takes whole gradients, and that of {names[0]} is sparse: the model must make it without sparse=True"
            raise InvalidInputError("plugins", self._plugin.plugin, why)
        buffer.mul_(1 / self._world)
        payloads = self._plugin.encode(names, gradients)
        lengths = [len(payload) for payload in payloads]
        mine = torch.cat(payloads)
        if names[0] not in self._agreed:
            # unequal ones would end the process within gloo, without a word
            told = hashlib.sha256(repr((names, lengths, mine.dtype)).encode()).digest()
            self._agree(
                told, f"lengths of payloads from {names[0]} on", "they may depend on the gradient's length alone"
            )
            self._agreed.add(names[0])
        sent, work = self._send(mine)

        def merged(_: object) -> torch.Tensor:
            first, *others = sent.view(-1, len(mine))
            self._decode(gradients, first.split(lengths), add=False)
            for other in others:
                self._decode(gradients, other.split(lengths), add=True)
            return buffer

        future: torch.futures.Future[torch.Tensor] = work.get_future().then(merged)
        return future

    def _send(self, mine: torch.Tensor) -> tuple[torch.Tensor, dist.Work]:
        """Where the sum of all payloads, or those of all ranks, will be, and what says when."""
        if self._plugin.summable:
            return mine, _begun(dist.all_reduce(mine, async_op=True))
        sent = torch.empty(self._world * len(mine), dtype=mine.dtype, device=mine.device)
        return sent, _begun(dist.all_gather_into_tensor(sent, mine, async_op=True))

    def _decode(self, gradients: Sequence[torch.Tensor], payloads: Sequence[torch.Tensor], *, add: bool) -> None:
        for gradient, payload in zip(gradients, payloads, strict=True):
            decoded = self._plugin.decode(payload, gradient.numel()).view_as(gradient)
            if add:
                gradient.add_(decoded)
            else:
                gradient.copy_(decoded)

    def compute(self, function: Function, batch: Any) -> Any:
        """As the store."""
        return self._store.compute(function, batch)

    @contextmanager
    def reduction(self, *, last: bool) -> Iterator[None]:
        """As the store; before gradients are reduced the step is opened, or the plug-in takes none."""
        if last:
            opened = self._call("plugin.open_step", OpenStep(step_id=self._step + 1))
            self.traffic = opened if isinstance(opened, StepTraffic) else self.traffic
        with self._store.reduction(last=last):
            yield

    def apply(self) -> float:
        """As the store."""
        norm = self._store.apply()
        self._step += 1
        return norm

    def payloads(self, rank: int, step: int) -> dict[str, Any]:
        """As the store, and this rank's memory: it differs from rank to rank."""
        self._call("plugin.save", MemoryAt(step=step))
        memory = dict(self._plugin.memory())
        files = self._store.payloads(rank, step)
        if memory:
            kept = {"step": step, "plugin": self._plugin.plugin, "memory": in_memory(memory)}
            files[memory_file(rank)] = kept
        return files

    def restore(self, source: Source) -> None:
        """As the store, and the memory. Raises ValueError for that of other parameters."""
        self._store.restore(source)
        self._step = source.checkpoint.step
        found = _memory(source, self._plugin.plugin, dist.get_rank() if dist.is_initialized() else 0, self._world)
        self._call("plugin.restore", MemoryAt(step=self._step))
        if found is not None:
            self._plugin.remember(found)

    def complete(self, make: Callable[[], nn.Module]) -> nn.Module | None:
        """As the store."""
        return self._store.complete(make)

    def owned(self) -> Owned:
        """As the store."""
        return self._store.owned()

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """As the store."""
        return self._store.parameters()


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "None is for ranks outside the group"
    return work


def _memory(source: Source, plugin: str, rank: int, world: int) -> dict[str, torch.Tensor] | None:
    """This rank's memory from a checkpoint; None when it has none of this plug-in, which is said in the log.

    With another number of ranks, what all of them held back is shared out evenly: memory is of gradients that are
    added up, so its sum is what must not change.
    """
    names = [file.path for file in source.manifest.files if _MEMORY.fullmatch(file.path)]
    own = memory_file(rank)
    same = len(names) == world and own in names
    read = [own] if same else sorted(names)
    parts = [content for name in read if (content := source.read(name)) and content["plugin"] == plugin]
    if not parts:
        log.warning("ErrorMemoryReset: %s holds no memory of plug-in %s", source.checkpoint.path, plugin)
        return None
    if same:
        return dict(parts[0]["memory"])
    total = {name: sum(part["memory"][name] for part in parts) for name in parts[0]["memory"]}
    return {name: tensor / world for name, tensor in total.items()}
