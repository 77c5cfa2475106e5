"""All that a checkpoint holds of module, optimizer and schedule, by name: tensors of which a rank has a piece, and
plain values. The same names whatever the plan, so that one plan reads what another has written.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kuangchao_worker.layers.state.assembly import plain
from kuangchao_worker.layers.state.experts import inside
from kuangchao_worker.layers.state.pieces import Piece, whole
from kuangchao_worker.parallel.dimensions import PIPELINE

MODULE, OPTIMIZER, SCHEDULER = "module.", "optimizer.", "scheduler"
STATES, GROUPS = f"{OPTIMIZER}state.", f"{OPTIMIZER}param_groups."
"""What the optimizer keeps of a parameter, and how it updates it, with `FLAT`."""
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True)
class Entries:
    """`tensors` are the live ones: what is copied into them is in force."""

    tensors: dict[str, torch.Tensor]
    values: dict[str, Any]


@dataclass(frozen=True)
class Holders:
    """Which ranks hold a parameter: those of the mesh, or for a divided expert those of `experts`.

    `own` names the experts of this rank.
    """

    mesh: DeviceMesh | None
    experts: DeviceMesh | None = None
    own: tuple[str, ...] = ()

    def of(self, name: str) -> DeviceMesh | None:
        """The mesh over which a parameter is spread, by its name."""
        return self.experts if self.expert(name) else self.mesh

    def of_entry(self, entry: str) -> DeviceMesh | None:
        """That over which an entry is: a parameter's own mesh, of the module as of the optimizer."""
        prefix = next((one for one in (MODULE, STATES, GROUPS) if entry.startswith(one)), "")
        return self.of(entry.removeprefix(prefix))

    def expert(self, name: str) -> bool:
        """Whether a parameter, or what the optimizer keeps of it, belongs to an expert that other ranks have not."""
        return inside(name, self.own)


def collect(module: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> Entries:
    """Everything by name. An optimizer that has made no step yet gets its states, with zeros."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {} if scheduler is None else {SCHEDULER: scheduler.state_dict()}
    fresh = not optimizer.state
    optimizer_state = get_optimizer_state_dict(module, optimizer, options=FLAT)
    if fresh:
        # torch makes the states by a step with nothing, which is none of the run's
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"].zero_()
    for name, value in (*_prefixed(MODULE, get_model_state_dict(module)), *_prefixed(OPTIMIZER, optimizer_state)):
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value
    return Entries(tensors, values)


def _prefixed(prefix: str, state: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(prefix + name, value) for name, value in state.items()]


def stateless(entries: Entries, held: Collection[str]) -> frozenset[str]:
    """Parameters of which a checkpoint with the entries `held` has no state of the optimizer, though of others it has:
    they had no gradient by then, since the loss does not depend on them.
    """
    known = {_state_of(name) for name in held}
    asked = {_state_of(name) for name in (*entries.tensors, *entries.values)}
    return frozenset(asked - known) if known - {""} else frozenset()


def _state_of(entry: str) -> str:
    """The parameter whose state an entry is a part of; "" for any other entry."""
    return entry.removeprefix(STATES).rpartition(".")[0] if entry.startswith(STATES) else ""


def without(entries: Entries, parameters: Collection[str]) -> Entries:
    """All but the states of these parameters."""
    kept = {
        kind: {name: value for name, value in found.items() if _state_of(name) not in parameters}
        for kind, found in (("tensors", entries.tensors), ("values", entries.values))
    }
    return Entries(**kept)


def install(
    entries: Entries,
    module: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    bare: Collection[str] = (),
) -> None:
    """Put tensors and values in force. The optimizer gets no state of the parameters `bare`, as one has that has not
    updated them."""
    everything = {**entries.tensors, **entries.values}
    set_model_state_dict(module, _under(everything, MODULE))
    set_optimizer_state_dict(module, optimizer, _under(everything, OPTIMIZER), options=FLAT)
    for name, parameter in plain(dict(module.named_parameters())).items():
        if name in bare:
            optimizer.state.pop(parameter, None)
    if scheduler is not None:
        scheduler.load_state_dict(entries.values[SCHEDULER])


def _under(everything: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in everything.items() if name.startswith(prefix)}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def piece_of(tensor: torch.Tensor) -> Piece:
    """Where this rank's piece lies in the whole."""
    if not isinstance(tensor, DTensor):
        return whole(tensor.shape)
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(tuple(offset), tuple(size))


def copies(tensor: torch.Tensor, mesh: DeviceMesh | None) -> int:
    """How many ranks of a pipeline stage hold the same piece."""
    count = 1
    for axis in _shared(tensor, mesh):
        count *= mesh[axis].size() if mesh is not None else 1
    return count


def writes(tensor: torch.Tensor, mesh: DeviceMesh | None) -> bool:
    """Whether this rank is the one among those with the same piece that saves it, and there is something to save."""
    first = all(mesh.get_local_rank(axis) == 0 for axis in _shared(tensor, mesh) if mesh is not None)
    return first and (local(tensor).numel() > 0 or tensor.numel() == 0)


def _shared(tensor: torch.Tensor, mesh: DeviceMesh | None) -> list[str]:
    """Axes along which ranks hold the same piece of a tensor: those that do not split it. Stages differ always."""
    split: set[str] = {PIPELINE}
    if isinstance(tensor, DTensor):
        names = tensor.device_mesh.mesh_dim_names or ()
        split |= {
            name for name, placement in zip(names, tensor.placements, strict=True) if not placement.is_replicate()
        }
    return [axis for axis in (mesh.mesh_dim_names or ()) if axis not in split] if mesh is not None else []
