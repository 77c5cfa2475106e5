"""The sole authority over weights inside a rank: applies gradients in order, saves and restores as one unit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.errors import NonFiniteGradientsError, StepOrderError, StorageError
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
from kuangchao_worker.layers.state.readable import readable
from kuangchao_worker.layers.state.seal import Owned, Seal, WriteLease
from kuangchao_worker.layers.state.snapshots import Snapshots, digest
from kuangchao_worker.layers.state.source import Source, rank_file
from kuangchao_worker.layers.state.update import UpdateRule
from kuangchao_worker.pod.memory import ran_out
from kuangchao_worker.pod.peers import lost
from kuangchao_worker.weights import WAIT_SECONDS, Weights


class Store(Protocol):
    """How state keeps the parameters: whole on each rank, or in pieces."""

    elements: int
    rule: UpdateRule

    def apply(self) -> float:
        """Update from the gradients; their norm over the whole model."""

    def payloads(self, rank: int, step: int) -> dict[str, Any]:
        """Files of this rank in a checkpoint, by name."""

    def restore(self, source: Source) -> None:
        """Replace everything by what a checkpoint holds."""

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The live parameters of this rank by name, once it is connected; pieces where a plan splits them."""

    def owned(self) -> Owned:
        """What nobody else may change, once it is connected."""


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
        self._lease = WriteLease(rank)
        self._seal: Seal | None = None
        self._snapshots = Snapshots(store.parameters)
        self._view: SnapshotView | None = None

    def close_to_others(self) -> None:
        """From now on a change of weights that state did not make is found. Call once the store is connected."""
        owned = self._store.owned()
        self._lease.guard(owned.optimizer)
        self._seal = Seal(owned, self._rank)

    @contextmanager
    def _write(self, operation: str, step: int) -> Iterator[None]:
        """Around whatever may touch weights. Raises ParameterTamperedError if somebody else already has."""
        with self._lease.held(operation):
            if self._seal is not None:
                self._seal.check(step)
            with self._snapshots.writing(step):
                yield
            if self._seal is not None:
                self._seal.renew()

    def submit_gradients(self, capability: Capability, request: SubmitGradients) -> StepResult:  # noqa: ARG002
        """See StateRank."""
        if request.step_id != self._step + 1:
            raise StepOrderError(f"step_id={request.step_id}: the next step is {self._step + 1}")
        with self._write("submit_gradients", request.step_id):
            norm = self._applied(request.step_id)
        self._step = request.step_id
        return self._result(norm)

    def _applied(self, step: int) -> float:
        try:
            norm = self._store.apply()
            if self._seal is not None:
                self._seal.check_schedule(step)
            return norm
        except NonFiniteGradientsError as error:
            raise NonFiniteGradientsError(f"rank {self._rank}, step {step}: {error}") from None

    def _result(self, norm: float) -> StepResult:
        scale = self._store.rule.scale
        result = StepResult(step=self._step, gradient_norm=f"{norm:.6g}", elements=self._store.elements)
        if scale is None:
            return result
        return result.replace(loss_scale=f"{scale.value:g}", skipped=scale.skipped)

    def save(self, capability: Capability, request: SaveRequest) -> Ack:  # noqa: ARG002
        """See StateRank."""
        if request.step != self._step:
            raise StepOrderError(f"step={request.step}: the state is that after step {self._step}")
        directory = Path(request.directory)
        # before anything is copied, so that memory holds one copy at most
        if not self._writer.free(directory):
            return Ack()
        own: dict[str, Any] = {"step": self._step, "rng": rng.capture()}
        if self._store.rule.scale is not None:
            own["scale"] = self._store.rule.scale.state()
        payloads: dict[str, Any] = {rank_file(self._rank): own}
        # an optimizer that has not stepped yet is made to, with nothing, so that it has states to save
        with self._write("save", self._step):
            payloads |= self._store.payloads(self._rank, self._step)
        self._writer.submit(directory, readable(payloads), self._oplog())
        return Ack()

    def restore(self, capability: Capability, request: RestoreRequest) -> Ack:  # noqa: ARG002
        """See StateRank."""
        source = Source.open(Path(request.directory), request.checkpoint)
        try:
            with self._write("restore", request.checkpoint.step):
                self._store.restore(source)
                self._snapshots.forget()
        except (RuntimeError, ValueError, KeyError) as error:
            if lost(error, str(error)) or ran_out(type(error).__name__, str(error)):
                raise  # which is no fault of the checkpoint's
            raise StorageError(f"{request.checkpoint.path} cannot be restored: {str(error)[:400]}") from None
        self._step, self._view = request.checkpoint.step, None
        self._restore_scale(source)
        own = source.read(rank_file(self._stream))
        # last of all: whatever was made before may have drawn numbers. A rank that did not exist when the checkpoint
        # was made starts its own sequence
        if own is not None:
            rng.restore(own["rng"])
        else:
            rng.seed_all(self._seed + self._step * 1_000_003 + self._stream)
        return Ack(detail=f"step {self._step}")

    def _restore_scale(self, source: Source) -> None:
        """All ranks take what the first one had, which is there whatever the plan was: they must not differ."""
        scale = self._store.rule.scale
        first = source.read(rank_file(0)) if scale is not None else None
        if scale is not None and first is not None and "scale" in first:
            scale.load(first["scale"])

    def snapshot(self, capability: Capability, request: SnapshotRequest) -> SnapshotView:  # noqa: ARG002
        """See StateRank."""
        with self.reading() as newest:
            if not request.want_digest:
                return SnapshotView(step=newest.step)
            if self._view is None or self._view.step != newest.step:
                self._view = SnapshotView(step=newest.step, sha256=digest(newest.tensors))
            return self._view

    def reading(self, timeout: float = WAIT_SECONDS) -> AbstractContextManager[Weights]:
        """The newest snapshot with its tensors, for readers in this process, on any thread. See `weights`."""
        return self._snapshots.held(timeout)

    def close(self, timeout: float) -> bool:
        """Wait for the last write; whether it ended in time."""
        return self._writer.wait(timeout)
