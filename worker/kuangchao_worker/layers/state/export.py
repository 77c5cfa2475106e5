"""The weights of a checkpoint in one file, whatever plan wrote it:
`python -m kuangchao_worker.layers.state.export CHECKPOINT FILE [--force]`.

Reads a checkpoint as restoring does, and leaves it as it is. Needs no code of the task, no ranks, and memory for the
model once at most: one that is whole is handed on from file to file. The answer is one JSON object on standard output.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.durable import sync_path
from kuangchao_contracts.errors import CheckpointCorruptError, InvalidInputError
from kuangchao_worker.layers.state import files, reshard
from kuangchao_worker.layers.state.assembly import plain
from kuangchao_worker.layers.state.entries import MODULE, Entries
from kuangchao_worker.layers.state.source import SHARED_FILE, Source, layout_file, shard_file
from kuangchao_worker.pod.shards import DAMAGED_SUFFIX, MANIFEST, WORKING_SUFFIX, finished_name, parse_name

CHECKPOINT: Final = "checkpoint"
TO: Final = "--to"
FORCE: Final = "--force"
OTHERS: Final = ".safetensors"


@dataclass(frozen=True)
class _Once(Source):
    """Each file is checked once, however often it is looked at."""

    _known: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def read(self, name: str) -> dict[str, Any] | None:
        if name not in self._known:
            self._known[name] = super().read(name)
        return self._known[name]


def opened(directory: Path) -> Source:
    """A committed checkpoint. Raises InvalidInputError for any other directory, with the newest one near it."""
    _require_committed(directory)
    manifest, digest = files.manifest_of(directory, directory.name)
    path = finished_name(manifest.step, manifest.attempt)
    reference = CheckpointRef(step=manifest.step, attempt=manifest.attempt, path=path, digest=digest)
    return _Once(directory, manifest, reference, lent=True)


def weights(source: Source) -> dict[str, Any]:
    """Parameters and buffers of the whole model, by its author's names. Raises CheckpointCorruptError."""
    shared = source.read(SHARED_FILE)
    found: dict[str, Any] = shared["module"] if shared is not None else _joined(source)
    return plain(found)


def _joined(source: Source) -> dict[str, Any]:
    layouts, whole, values = source.layouts(), dict[str, torch.Tensor](), dict[str, Any]()
    for rank in range(source.manifest.world_size):
        content = source.read(shard_file(rank))
        if content is None or rank not in layouts:
            missing = shard_file(rank) if content is None else layout_file(rank)
            raise CheckpointCorruptError(f"{source.checkpoint.path} has no {missing}")
        for name, entry in layouts[rank].items():
            if name.startswith(MODULE) and name not in whole:
                whole[name] = torch.empty(entry["shape"], dtype=content["tensors"][name].dtype)
        values |= {name: value for name, value in content["values"].items() if name.startswith(MODULE)}
    reshard.fill(Entries(whole, {}), source)
    return {name.removeprefix(MODULE): value for name, value in (whole | values).items()}


def _require_committed(directory: Path) -> None:
    try:
        there, name = (directory / MANIFEST).is_file(), directory.resolve().name
        if there and not name.endswith((WORKING_SUFFIX, DAMAGED_SUFFIX)):
            return
        why = "is no checkpoint: it holds no manifest.json" if directory.is_dir() else "is no directory"
        nearest = _newest(directory) or _newest(directory.parent)
    except OSError as error:
        raise InvalidInputError(CHECKPOINT, str(directory), error.strerror or "cannot be read") from None
    if name.endswith(WORKING_SUFFIX):
        why = "was never committed"
    elif name.endswith(DAMAGED_SUFFIX):
        why = "was put aside as damaged"
    raise InvalidInputError(CHECKPOINT, str(directory), why, nearest)


def _newest(folder: Path) -> str | None:
    """The newest checkpoint in a directory, as people would name it."""
    there = {path: parse_name(path.name) for path in folder.iterdir()} if folder.is_dir() else {}
    finished = {path: name for path, name in there.items() if name and not name[2] and (path / MANIFEST).is_file()}
    return str(max(finished, key=lambda path: finished[path])) if finished else None


def export(directory: Path, target: Path, *, force: bool = False) -> dict[str, Any]:
    """Write the file, whole or not at all; what to say of it."""
    source = opened(directory)
    _require_free(directory, target, force=force)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            found = weights(source)
            _save(found, file)
        part.replace(target)
        sync_path(target.parent)
    except OSError as error:
        raise InvalidInputError(TO, str(target), error.strerror or "cannot be written") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    tensors = [value for value in found.values() if isinstance(value, torch.Tensor)]
    return {
        "checkpoint": str(directory),
        "step": source.checkpoint.step,
        "file": str(target),
        "tensors": len(tensors),
        "elements": sum(tensor.numel() for tensor in tensors),
        "bytes": target.stat().st_size,
    }


def _require_free(directory: Path, target: Path, *, force: bool) -> None:
    if target.suffix == OTHERS:
        why = "is named as a file of safetensors, and what is written is one of torch"
        raise InvalidInputError(TO, str(target), why, target.with_suffix(".pt"))
    if target.is_dir():
        raise InvalidInputError(TO, str(target), "is a directory", target / "weights.pt")
    if target.resolve().parent == directory.resolve():
        why = "lies in the checkpoint, which stays as it was committed"
        raise InvalidInputError(TO, str(target), why, target.name)
    if target.exists() and not force:
        raise InvalidInputError(TO, str(target), "is there already", FORCE)


def _save(found: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(found, file)
    except RuntimeError as error:
        # torch turns a failed write into one
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    file.flush()
    os.fsync(file.fileno())


def main(arguments: Sequence[str]) -> int:
    """Write and answer. Errors are answered too, with their exit code, for who can tell them as their own."""
    places, options = [a for a in arguments if a != FORCE], [a for a in arguments if a == FORCE]
    if len(places) != 2:
        sys.stderr.write(__doc__ or "")
        return 2
    code = 0
    try:
        answer = export(Path(places[0]), Path(places[1]), force=bool(options))
    except InvalidInputError as error:
        code, answer = 2, {"field": error.field, "value": error.value, "why": error.why, "nearest": error.nearest}
    except CheckpointCorruptError as error:
        code, answer = 1, {"corrupt": str(error)}
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
