"""Checkpoints in pieces: each rank writes what it holds and says where that lies in the whole; whoever restores takes
from them what it needs, under whatever plan. Never gathers a whole model in one process.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import torch

from kuangchao_contracts.errors import CheckpointCorruptError
from kuangchao_worker.layers.state import fit
from kuangchao_worker.layers.state.assembly import plain
from kuangchao_worker.layers.state.entries import (
    GROUPS,
    MODULE,
    SCHEDULER,
    STATES,
    Entries,
    Holders,
    local,
    piece_of,
    stateless,
    without,
    writes,
)
from kuangchao_worker.layers.state.files import in_memory
from kuangchao_worker.layers.state.pieces import Piece, overlap, whole, within
from kuangchao_worker.layers.state.source import SHARED_FILE, Source, layout_file, shard_file

Wanted = dict[int, list[tuple[str, Piece, Piece]]]
"""By rank that wrote: entry, the piece that it wrote, and the part of it to take."""


def payloads(entries: Entries, holders: Holders, rank: int, step: int) -> dict[str, Any]:
    """Files of this rank: copies that later steps cannot change, and the layout."""
    kept = {name: tensor for name, tensor in entries.tensors.items() if writes(tensor, holders.of_entry(name))}
    layout = {name: _declared(tensor) for name, tensor in kept.items()}
    pieces = {name: in_memory(local(tensor)) for name, tensor in kept.items()}
    return {
        shard_file(rank): {"step": step, "tensors": pieces, "values": in_memory(entries.values)},
        layout_file(rank): {"step": step, "entries": layout},
    }


def _declared(tensor: torch.Tensor) -> dict[str, Any]:
    piece = piece_of(tensor)
    return {"shape": tuple(tensor.shape), "offset": piece.offset, "size": piece.size}


def fill(entries: Entries, source: Source, every: Collection[str] | None = None) -> frozenset[str]:
    """Copy into the entries what a checkpoint holds of them; the parameters of which its optimizer has no state.

    `every` names all tensors of the model, of which this rank may have some: the checkpoint must hold no others.

    Raises CheckpointCorruptError for an entry of which it lacks some, InvalidInputError for that of another model.
    """
    missing = {name: piece_of(tensor).elements for name, tensor in entries.tensors.items()}
    values, layouts = dict[str, Any](), source.layouts()
    declared = {name: tuple(entry["shape"]) for layout in layouts.values() for name, entry in layout.items()}
    fit.same_model(source.checkpoint.path, _of_module(declared), _of_module(fit.shapes(entries.tensors)), every=every)
    for rank, wanted in _wanted(entries, layouts).items():
        content = source.read(shard_file(rank))
        if content is None:
            raise CheckpointCorruptError(f"{source.checkpoint.path} has no {shard_file(rank)}")
        values |= content["values"]
        for name, written, part in wanted:
            _copy(entries.tensors[name], content["tensors"][name], written, part)
            missing[name] -= part.elements
    bare = stateless(entries, {*values, *(name for layout in layouts.values() for name in layout)})
    asked = without(entries, bare)
    for name in (*(name for name in asked.tensors if missing[name]), *(set(asked.values) - set(values))):
        raise CheckpointCorruptError(f"{source.checkpoint.path} does not hold all of {name}")
    entries.values.update({name: values[name] for name in asked.values})
    return bare


def _wanted(entries: Entries, layouts: Mapping[int, Mapping[str, Any]]) -> Wanted:
    wanted: Wanted = defaultdict(list)
    for rank, layout in sorted(layouts.items()):
        for name in layout.keys() & entries.tensors.keys():
            tensor, declared = entries.tensors[name], layout[name]
            if tuple(declared["shape"]) != tuple(tensor.shape):
                raise ValueError(f"{name} is of shape {tuple(declared['shape'])}, not {tuple(tensor.shape)}")
            written = Piece(tuple(declared["offset"]), tuple(declared["size"]))
            part = overlap(written, piece_of(tensor))
            if part is not None:
                wanted[rank].append((name, written, part))
    return wanted


def _of_module(shapes: fit.Shapes) -> fit.Shapes:
    """Those of the module, by the names that it gives them."""
    return {name.removeprefix(MODULE): shape for name, shape in shapes.items() if name.startswith(MODULE)}


def _copy(target: torch.Tensor, piece: torch.Tensor, written: Piece, part: Piece) -> None:
    with torch.no_grad():
        local(target)[within(piece_of(target), part)].copy_(piece[within(written, part)])


def fill_from_whole(
    entries: Entries, source: Source, order: list[str], every: Collection[str] | None = None
) -> frozenset[str]:
    """As `fill`, from the one file that data-parallel ranks write. `order` names the optimizer's parameters.

    Raises CheckpointCorruptError when there is no such file or it lacks an entry, InvalidInputError for that of another
    model or optimizer.
    """
    content, path = source.read(SHARED_FILE), source.checkpoint.path
    if content is None:
        raise CheckpointCorruptError(f"{path}: holds no weights")
    content["module"] = plain(content["module"])
    fit.same_model(path, fit.shapes(content["module"]), _of_module(fit.shapes(entries.tensors)), every=every)
    fit.same_optimizer(path, [sum(fit.group_sizes(content["optimizer"]["param_groups"]))], [len(order)])
    found = by_name(content, order)
    bare = stateless(entries, found)
    asked = without(entries, bare)
    for name in (*asked.tensors, *asked.values):
        if name not in found:
            raise CheckpointCorruptError(f"{path} does not hold all of {name}")
    for name, tensor in asked.tensors.items():
        given = found[name]
        if tuple(given.shape) != tuple(tensor.shape):
            raise ValueError(f"{name} is of shape {tuple(given.shape)}, not {tuple(tensor.shape)}")
        _copy(tensor, given, whole(given.shape), piece_of(tensor))
    entries.values.update({name: found[name] for name in asked.values})
    return bare


def by_name(content: Mapping[str, Any], order: list[str]) -> dict[str, Any]:
    """Module, optimizer and schedule of data-parallel ranks with the names of `entries`; torch numbers parameters."""
    found: dict[str, Any] = {f"{MODULE}{name}": value for name, value in content["module"].items()}
    for number, state in content["optimizer"]["state"].items():
        found |= {f"{STATES}{order[number]}.{key}": value for key, value in state.items()}
    for group in content["optimizer"]["param_groups"]:
        for number in group["params"]:
            common = {key: value for key, value in group.items() if key != "params"}
            found |= {f"{GROUPS}{order[number]}.{key}": value for key, value in common.items()}
    return found | {SCHEDULER: content["scheduler"]}
