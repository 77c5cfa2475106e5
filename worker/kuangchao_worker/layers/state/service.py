"""The sole authority over weights inside a rank: applies gradients in order, saves and restores as one unit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import StepOrderError, StorageError
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
from kuangchao_worker.layers.state.source import Source, rank_file


class Store(Protocol):
    """How state keeps the parameters: whole on each rank, or in pieces."""

    elements: int

    def apply(self) -> float:
        """Update from the gradients; their norm over the whole model."""

    def payloads(self, rank: int, step: int) -> dict[str, Any]:
        """Files of this rank in a checkpoint, by name."""

    def restore(self, source: Source) -> None:
        """Replace everything by what a checkpoint holds."""

    def digest(self) -> str:
        """SHA-256 of the weights that this rank holds."""


class StateService(StateRank):
    """State of one rank. `oplog` pins the rank's operation log as it is now.

    `stream` is the rank whose random numbers this one draws, itself unless given.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        seed: int,
        writer: files.ShardWriter,
        oplog: Callable[[], Pinned],
        stream: int | None = None,
    ) -> None:
        self._store, self._rank, self._seed = store, rank, seed
        self._stream = rank if stream is None else stream
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
        payloads |= self._store.payloads(self._rank, self._step)
        self._writer.submit(Path(request.directory), payloads, self._oplog())
        return Ack()

    def restore(self, capability: Capability, request: RestoreRequest) -> Ack:  # noqa: ARG002
        """See StateRank."""
        source = Source.open(Path(request.directory), request.checkpoint)
        try:
            self._store.restore(source)
        except (RuntimeError, ValueError, KeyError) as error:
            raise StorageError(f"{request.checkpoint.path} is from another model: {str(error)[:400]}") from None
        self._step = request.checkpoint.step
        own = source.read(rank_file(self._stream))
        # last of all: whatever was made before may have drawn numbers. A rank that did not exist when the checkpoint
        # was made starts its own sequence
        if own is not None:
            rng.restore(own["rng"])
        else:
            rng.seed_all(self._seed + self._step * 1_000_003 + self._stream)
        return Ack(detail=f"step {self._step}")

    def snapshot(self, capability: Capability, request: SnapshotRequest) -> SnapshotView:  # noqa: ARG002
        """See StateRank."""
        return SnapshotView(step=self._step, sha256=self._store.digest() if request.want_digest else None)

    def close(self, timeout: float) -> bool:
        """Wait for the last write; whether it ended in time."""
        return self._writer.wait(timeout)
