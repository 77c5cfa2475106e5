"""State of a rank: steps in order, saved and restored bit for bit, nothing restored that was changed."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kuangchao_contracts import errors as e
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.ports.state import RestoreRequest, SaveRequest, SnapshotRequest, SubmitGradients
from kuangchao_worker.layers.state import rng
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.pod.shards import ShardsDone, file_digest
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.parts import CAPABILITY, committed, make_state, save, train


def test_steps_come_in_order_and_once(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 2)
    for wrong in (0, 1, 2, 4):
        with pytest.raises(e.StepOrderError):
            state.submit_gradients(CAPABILITY, SubmitGradients(step_id=wrong))
    with pytest.raises(e.StepOrderError):
        state.save(CAPABILITY, SaveRequest(step=1, directory=str(tmp_path)))


@pytest.mark.parametrize("at", [1, 4, 7])
def test_restored_state_goes_on_bit_for_bit(tmp_path: Path, at: int) -> None:
    task = mlp({"dropout": "0.5"})
    state = make_state(task, tmp_path)
    train(state, task, 1, at)
    save(state, tmp_path, at)
    expected = train(state, task, at + 1, 9)
    other = make_state(task, tmp_path, seed=99)
    ref = committed(tmp_path, at)
    other.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert train(other, task, at + 1, 9) == expected
    digests = [s.snapshot(CAPABILITY, SnapshotRequest()).sha256 for s in (state, other)]
    assert digests[0] == digests[1]


def test_saved_copy_does_not_change_with_later_steps(tmp_path: Path) -> None:
    """CPU tensors must be copied before `save` returns, not when the thread gets to them."""
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    at_save = state.snapshot(CAPABILITY, SnapshotRequest()).sha256
    state.save(CAPABILITY, SaveRequest(step=1, directory=str(tmp_path / "step-1.att-1.tmp")))
    train(state, task, 2, 5)
    assert state.close(30)
    ref = committed(tmp_path, 1)
    state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert state.snapshot(CAPABILITY, SnapshotRequest()).sha256 == at_save


@pytest.mark.parametrize("part", ["module", "optimizer", "scheduler", "rng"])
def test_every_saved_part_matters(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of curves would notice each part that a checkpoint left out."""
    task = mlp({"dropout": "0.5", "horizon": "9"})
    state = make_state(task, tmp_path)
    train(state, task, 1, 4)
    save(state, tmp_path, 4)
    expected = train(state, task, 5, 9)
    other = make_state(task, tmp_path, seed=99)
    ref = committed(tmp_path, 4)
    load = ParameterStore.load

    def forgetful(self: ParameterStore, saved: dict[str, Any], path: str) -> None:
        own = self.state()
        load(self, {**saved, part: own[part]} if part in own else saved, path)

    monkeypatch.setattr(ParameterStore, "load", forgetful)
    if part == "rng":
        monkeypatch.setattr(rng, "restore", lambda _: None)
    other.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert train(other, task, 5, 9) != expected


def test_changed_file_and_foreign_manifest_are_refused(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    save(state, tmp_path, 1)
    ref = committed(tmp_path, 1)
    where = tmp_path / ref.path
    with pytest.raises(e.CheckpointCorruptError, match="not the committed one"):
        state.restore(CAPABILITY, RestoreRequest(checkpoint=ref.replace(digest="0" * 64), directory=str(where)))
    raw = bytearray((where / "shared.pt").read_bytes())
    raw[-1] ^= 1
    (where / "shared.pt").write_bytes(raw)
    with pytest.raises(e.CheckpointCorruptError, match="does not match its digest"):
        state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(where)))


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    save(state, tmp_path, 1)
    ref = committed(tmp_path, 1)
    why = r"task\.model='0\.0\.weight': is of shape \(8, 16\), and in step-1.att-1 of \(64, 16\); "
    with pytest.raises(e.InvalidInputError, match=why):
        make_state(mlp({"hidden": "8"}), tmp_path).restore(
            CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path))
        )


class Planted:
    """Becomes, where it is unpickled, a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """Others may write to the volume, and a digest says only that nobody has since."""
    state, working, mark = make_state(mlp({}), tmp_path), tmp_path / "step-1.att-1.tmp", tmp_path / "mark"
    working.mkdir()
    torch.save({"step": 1, "module": Planted(mark)}, working / "shared.pt")
    done = ShardsDone(rank=0, files=(file_digest(working, "shared.pt"),), torch_version="2")
    (working / "rank-0.done").write_bytes(done.canonical())
    ref = committed(tmp_path, 1)
    why = r"step-1\.att-1/shared\.pt: is made of getattr, and no code is run to open it"
    with pytest.raises(e.StorageError, match=why):
        state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    assert not mark.exists()


def test_a_rank_that_is_in_no_checkpoint_draws_numbers_of_its_own(tmp_path: Path) -> None:
    """Those of another rank would drop out the same."""
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 1)
    save(state, tmp_path, 1)
    ref, drawn = committed(tmp_path, 1), []
    for rank in (0, 1, 2):
        other = StateService(state._store, rank, 7, ShardWriter(rank, lambda *_: None), lambda: Pinned(0, ""))
        other.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
        drawn.append(torch.rand(1).item())
    assert len(set(drawn)) == 3
    rng.seed_all(7 + 1 * 1_000_003 + 2)
    assert torch.rand(1).item() == drawn[2], "the same each time"


def test_failed_save_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    task, said = mlp({}), []
    state = make_state(task, tmp_path, said)
    (tmp_path / "full").write_text("a file where a directory should be")
    train(state, task, 1, 1)
    state.save(CAPABILITY, SaveRequest(step=1, directory=str(tmp_path / "full" / "step-1.att-1.tmp")))
    assert state.close(30)
    assert "NotADirectoryError" in said[0]
    train(state, task, 2, 2)


def test_a_part_is_done_once_its_operation_log_is_durable(tmp_path: Path) -> None:
    """The store pins the log with the checkpoint: after a crash of the node both must be there."""
    working, seen = tmp_path / "step-1.att-1.tmp", []

    class Log(Pinned):
        def sync(self) -> None:
            seen.append(sorted(path.name for path in working.iterdir()))

    writer = ShardWriter(0, lambda *_: None)
    writer.submit(working, {"rank-0.pt": {"step": 1}}, Log(3, "ab"))
    assert writer.wait(30)
    assert seen == [["rank-0.pt"]], "once, before the word that the part is complete"
    assert ShardsDone.model_validate_json((working / "rank-0.done").read_bytes()).oplog == "3:ab"


def test_all_generators_are_captured() -> None:
    rng.seed_all(5)
    state = rng.capture()

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    first = draw()
    rng.restore(torch.load(_saved(state), weights_only=True))
    assert draw() == first


def _saved(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer
