"""Files of one rank in a checkpoint: written in the background with their digests, read back only if they match."""

import hashlib
import io
import os
import pickle
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError

from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef, FileDigest
from kuangchao_contracts.errors import CheckpointCorruptError, StorageError
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_worker.parallel.nested import mapped
from kuangchao_worker.pod.shards import MANIFEST, ShardsDone, done_name, file_digest, write_durably

WRITE_SECONDS: Final = 1_800.0
_NAMED: Final = re.compile(r"GLOBAL ([\w.]+)")
Notify = Callable[[Path, str | None], None]
"""Called with the directory and None when a rank's part is complete, or with what went wrong."""


class _Hashing:
    """A sink for torch.save that counts and hashes what passes to the file."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


class ShardWriter:
    """One write at a time, in a thread. A failed write is reported and never raised: training goes on."""

    def __init__(self, rank: int, notify: Notify) -> None:
        self._rank, self._notify = rank, notify
        self._thread: threading.Thread | None = None

    def free(self, directory: Path) -> bool:
        """Wait for the write before that to `directory`; whether it is over, which is reported if it is not."""
        if self.wait(WRITE_SECONDS):
            return True
        self._notify(directory, "the checkpoint before this one is still being written")
        return False

    def submit(self, directory: Path, payloads: Mapping[str, Any], oplog: Pinned) -> None:
        """Start to write. Call when `free`."""
        self._thread = threading.Thread(
            target=self._write, args=(directory, payloads, oplog), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait for the write in progress; whether it is over."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _write(self, directory: Path, payloads: Mapping[str, Any], oplog: Pinned) -> None:
        written: list[str] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            files = []
            for name, payload in payloads.items():
                written.append(name)
                files.append(_save(directory, name, payload))
            # what the store pins with this checkpoint must be on the volume like the checkpoint itself
            oplog.sync()
            done = ShardsDone(
                rank=self._rank,
                files=tuple(files),
                oplog=str(oplog),
                oplog_kept=oplog.kept,
                torch_version=torch.__version__,
            )
            write_durably(directory / done_name(self._rank), done.canonical())
        except (OSError, RuntimeError) as error:  # torch turns a failed write into RuntimeError
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            for name in written:
                (directory / name).unlink(missing_ok=True)
            self._notify(directory, f"{type(cause).__name__}: {cause}"[:512])
        else:
            self._notify(directory, None)


def _save(directory: Path, name: str, payload: Any) -> FileDigest:
    with (directory / name).open("wb") as file:
        sink = _Hashing(file)
        torch.save(payload, sink)  # type: ignore[arg-type]  # torch needs write and flush only
        file.flush()
        os.fsync(file.fileno())
    return FileDigest(path=name, size=sink.size, sha256=sink.digest.hexdigest())


def read_manifest(directory: Path, checkpoint: CheckpointRef) -> CheckpointManifest:
    """The manifest, if it is the one that was committed. Raises CheckpointCorruptError."""
    manifest, found = manifest_of(directory, checkpoint.path)
    if found != checkpoint.digest:
        raise CheckpointCorruptError(f"{checkpoint.path}: manifest is not the committed one")
    return manifest


def manifest_of(directory: Path, path: str) -> tuple[CheckpointManifest, str]:
    """The manifest that is there, and its digest. Raises CheckpointCorruptError, naming the checkpoint `path`."""
    try:
        raw = (directory / MANIFEST).read_bytes()
        return CheckpointManifest.model_validate_json(raw), hashlib.sha256(raw).hexdigest()
    except (OSError, ValidationError) as error:
        raise CheckpointCorruptError(f"{path}: manifest cannot be read: {type(error).__name__}") from None


def load(directory: Path, manifest: CheckpointManifest, name: str, *, lent: bool = False) -> Any:
    """Content of a file, None when the manifest has no such file. Raises CheckpointCorruptError if it was changed, and
    StorageError if it is what its digest says and no file of plain values.

    `lent`: its tensors stay in the file, which must not change while they are used, and take no memory of their own.
    """
    entry = next((file for file in manifest.files if file.path == name), None)
    if entry is None:
        return None
    try:
        raw = (directory / name).read_bytes() if not lent else b""
        found = file_digest(directory, name) if lent else _digest(name, raw)
    except OSError as error:
        raise CheckpointCorruptError(f"{directory.name}/{name}: {error.strerror}") from None
    if found != entry:
        raise CheckpointCorruptError(f"{directory.name}/{name}: does not match its digest")
    try:
        # never unpickle code from a volume that others may write to
        return torch.load(directory / name if lent else io.BytesIO(raw), "cpu", weights_only=True, mmap=lent)
    except pickle.UnpicklingError as error:
        named = _NAMED.search(str(error))
        what = named[1] if named else "more than plain values"
        raise StorageError(f"{directory.name}/{name}: is made of {what}, and no code is run to open it") from None


def _digest(name: str, raw: bytes) -> FileDigest:
    return FileDigest(path=name, size=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def in_memory(value: Any) -> Any:
    """A deep copy with all tensors copied to main memory; torch's own async stager leaves CPU tensors shared."""
    return mapped(value, lambda tensor: tensor.detach().to("cpu", copy=True))
