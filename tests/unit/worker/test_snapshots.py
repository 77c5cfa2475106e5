"""Reads while training goes on: the weights of one step, all of it, in one copy that nobody writes to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kuangchao_contracts.errors import UnavailableError, UnleasedWriteError
from kuangchao_contracts.ports.state import RestoreRequest, SaveRequest, SnapshotRequest
from kuangchao_worker.layers.state import files
from kuangchao_worker.layers.state.readonly import bare
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.layers.state.snapshots import digest
from kuangchao_worker.tasks.mlp import mlp
from kuangchao_worker.weights import Weights, readable, weights
from tests.unit.worker.parts import CAPABILITY, committed, make_state, save, train

TASK = mlp({"dropout": "0"})


def live(state: StateService) -> dict[str, torch.Tensor]:
    return dict(state._store.parameters())


def size(tensors: Any) -> int:
    return sum(bare(tensor).untyped_storage().nbytes() for tensor in tensors.values())


def memory(found: Weights) -> dict[str, int]:
    return {name: bare(tensor).data_ptr() for name, tensor in found.tensors.items()}


def by_step(folder: Path, last: int) -> list[str]:
    state, found = make_state(TASK, folder), []
    for step in range(last + 1):
        found.append(digest(live(state)))
        train(state, TASK, step + 1, step + 1)
    return found


def test_a_reader_on_another_thread_sees_one_step_whole(tmp_path: Path) -> None:
    last, expected, step_made = 45, by_step(tmp_path, 45), threading.Semaphore(0)
    state, seen, problems = make_state(TASK, tmp_path), set(), []

    def read() -> None:
        for _ in range(last):
            assert step_made.acquire(timeout=60)
            # while the next one is made
            with state.reading() as found:
                seen.add(found.step)
                if digest(found.tensors) != expected[found.step]:
                    problems.append(found.step)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, last + 1):
        train(state, TASK, step, step)
        step_made.release()
    reader.join(60)
    assert not problems and len(seen) > 1
    assert all(later - one >= 10 for one, later in zip(sorted(seen), sorted(seen)[1:], strict=False))


def test_what_is_held_stays_and_its_memory_is_used_again(tmp_path: Path) -> None:
    state = make_state(TASK, tmp_path)
    with state.reading() as first:
        at_start = digest(first.tensors)
        train(state, TASK, 1, 25)
        with state.reading() as other:
            assert (other.step, memory(other)) == (0, memory(first)), "one copy for all"
        assert digest(first.tensors) == at_start != digest(live(state))
        held = memory(first)
    with state.reading() as second:
        assert second.step == 25 and digest(second.tensors) == digest(live(state))
        assert memory(second) == held
        assert size(second.tensors) <= 1.1 * size(live(state))
    assert held.keys() == live(state).keys()


def test_nothing_is_copied_where_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(TASK, tmp_path)
    copied: list[int] = []
    renewed: Callable[..., Any] = state._snapshots._renewed

    def noted(old: Any) -> Any:
        copied.append(state._step)
        return renewed(old)

    monkeypatch.setattr(state._snapshots, "_renewed", noted)
    train(state, TASK, 1, 21)
    assert not copied
    for _ in range(3):
        state.snapshot(CAPABILITY, SnapshotRequest(want_digest=False))
    assert copied == [21]


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "adds": lambda tensor: tensor.add_(1), "copies": lambda tensor: tensor.copy_(torch.ones(())),
    "through a view": lambda tensor: tensor.view(-1)[0].zero_(), "fills": torch.nn.init.zeros_,
    "as a result": lambda tensor: torch.add(tensor, 1, out=tensor),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_snapshot_cannot_be_written_to(tmp_path: Path, write: Callable[[torch.Tensor], Any]) -> None:
    state = make_state(TASK, tmp_path)
    with state.reading() as found:
        before = digest(found.tensors)
        with pytest.raises(UnleasedWriteError, match="would write to a snapshot"):
            write(next(iter(found.tensors.values())))
        assert digest(found.tensors) == before
        with pytest.raises(TypeError):
            found.tensors["more"] = torch.zeros(1)  # type: ignore[index]  # that it is refused is the point


def test_a_reader_does_not_wait_for_an_update_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, begun, over = make_state(TASK, tmp_path), threading.Event(), threading.Event()
    apply: Callable[[], float] = state._store.apply

    def slow() -> float:
        begun.set()
        assert over.wait(30)
        return apply()

    monkeypatch.setattr(state._store, "apply", slow)
    writer = threading.Thread(target=train, args=(state, TASK, 1, 1))
    writer.start()
    assert begun.wait(30)
    with pytest.raises(UnavailableError, match=r"written to for 0\.01 s"), state.reading(0.01):
        pass
    over.set()
    writer.join(30)
    with state.reading() as found:
        assert found.step == 1


def test_a_restore_is_seen_at_once(tmp_path: Path) -> None:
    state = make_state(TASK, tmp_path)
    train(state, TASK, 1, 2)
    save(state, tmp_path, 2)
    train(state, TASK, 3, 3)
    ref = committed(tmp_path, 2)
    with state.reading() as before:
        state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
        with state.reading() as after:
            assert (before.step, after.step) == (3, 2)
            assert digest(after.tensors) == digest(live(state)) != digest(before.tensors)


def test_code_of_a_task_reads_where_a_rank_trains(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="this process is none"):
        weights()
    state = make_state(TASK, tmp_path)

    @contextmanager
    def reader(timeout: float) -> Iterator[Weights]:
        with state.reading(timeout) as found:
            yield found

    with readable(reader), weights() as found:
        assert found.step == 0 and found.tensors.keys() == live(state).keys()
    with pytest.raises(UnavailableError):
        weights()


def test_memory_holds_one_copy_of_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save begins to copy when the write before it is over."""
    state, written, done = make_state(TASK, tmp_path), threading.Event(), []
    _save, payloads, free = files._save, state._store.payloads, state._writer.free

    def slow(*given: Any) -> Any:
        assert written.wait(30)
        done.append("written")
        return _save(*given)

    def copies(*given: Any) -> Any:
        done.append("copied")
        return payloads(*given)

    def asked(directory: Path) -> bool:
        if done:
            written.set()
        return free(directory)

    monkeypatch.setattr(files, "_save", slow)
    monkeypatch.setattr(state._writer, "free", asked)
    monkeypatch.setattr(state._store, "payloads", copies)
    for step in (1, 2):
        train(state, TASK, step, step)
        state.save(CAPABILITY, SaveRequest(step=step, directory=str(tmp_path / f"step-{step}.att-1.tmp")))
    assert state.close(30)
    assert done == ["copied", "written", "written", "copied", "written", "written"]
