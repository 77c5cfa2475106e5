"""The sole authority over weights inside a rank: applies gradients in order, saves and restores as one unit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import CheckpointCorruptError, StepOrderError, StorageError
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.ports.state import (
    RestoreRequest,
    SaveRequest,
    SnapshotRequest,
    SnapshotView,
    StateRank,
    StepResult,
    SubmitGradients,
)
from kuangchao_contracts.run import Ack
from kuangchao_worker.layers.state import files, rng
from kuangchao_worker.layers.state.parameters import ParameterStore

SHARED_FILE = "shared.pt"
"""Weights, optimizer and schedule, equal on all data ranks, so rank 0 writes them for all."""


def rank_file(rank: int) -> str:
    """What differs between ranks: the random number generators."""
    return f"rank-{rank}.pt"


class StateService(StateRank):
    """State of one rank. `oplog` pins the rank's operation log as it is now."""

    def __init__(
        self, store: ParameterStore, rank: int, seed: int, writer: files.ShardWriter, oplog: Callable[[], Pinned]
    ) -> None:
        self._store, self._rank, self._seed = store, rank, seed
        self._writer, self._oplog = writer, oplog
        self._step = 0

    def submit_gradients(self, capability: Capability, request: SubmitGradients) -> StepResult:  # noqa: ARG002
        """See StateRank."""
        if request.step_id != self._step + 1:
            raise StepOrderError(f"step_id={request.step_id}: the next step is {self._step + 1}")
        norm = self._store.apply()
        self._step = request.step_id
        return StepResult(step=self._step, gradient_norm=f"{norm:.6g}", elements=self._store.elements)

    def save(self, capability: Capability, request: SaveRequest) -> Ack:  # noqa: ARG002
        """See StateRank."""
        if request.step != self._step:
            raise StepOrderError(f"step={request.step}: the state is that after step {self._step}")
        payloads: dict[str, Any] = {rank_file(self._rank): {"step": self._step, "rng": rng.capture()}}
        if self._rank == 0:
            payloads[SHARED_FILE] = {"step": self._step, **self._store.state()}
        self._writer.submit(Path(request.directory), payloads, self._oplog())
        return Ack()

    def restore(self, capability: Capability, request: RestoreRequest) -> Ack:  # noqa: ARG002
        """See StateRank."""
        directory = Path(request.directory)
        manifest = files.read_manifest(directory, request.checkpoint)
        shared = files.load(directory, manifest, SHARED_FILE)
        if shared is None or shared["step"] != request.checkpoint.step:
            raise CheckpointCorruptError(
                f"{request.checkpoint.path}: holds no weights of step {request.checkpoint.step}"
            )
        try:
            self._store.load(shared)
        except (RuntimeError, ValueError, KeyError) as error:
            raise StorageError(f"{request.checkpoint.path} is from another model: {str(error)[:400]}") from None
        self._step = request.checkpoint.step
        own = files.load(directory, manifest, rank_file(self._rank))
        # last of all: whatever was made before may have drawn numbers. A rank that did not exist when the checkpoint
        # was made starts its own sequence
        if own is not None:
            rng.restore(own["rng"])
        else:
            rng.seed_all(self._seed + self._step * 1_000_003 + self._rank)
        return Ack(detail=f"step {self._step}")

    def snapshot(self, capability: Capability, request: SnapshotRequest) -> SnapshotView:  # noqa: ARG002
        """See StateRank."""
        return SnapshotView(step=self._step, sha256=self._store.digest() if request.want_digest else None)

    def close(self, timeout: float) -> bool:
        """Wait for the last write; whether it ended in time."""
        return self._writer.wait(timeout)
