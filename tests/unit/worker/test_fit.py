"""A checkpoint of another model or optimizer is told from one that cannot be read: only the former ends the job."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_contracts.ports.state import RestoreRequest
from kuangchao_worker.layers.state.fit import same_model, same_optimizer, shapes
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.service import Source
from tests.unit.worker.test_state import CAPABILITY, make_state
from tests.unit.worker.test_state import mlp as task

REF = CheckpointRef(step=2, attempt=1, path="step-2", digest="0" * 64)


@dataclass
class Whole:
    """A checkpoint of data ranks in memory."""

    content: dict[str, Any]
    checkpoint: CheckpointRef = REF

    def read(self, name: str) -> dict[str, Any] | None:
        return self.content if name == "shared.pt" else None


def store(module: nn.Module, groups: int = 1) -> ParameterStore:
    parameters = list(module.parameters())
    return ParameterStore(module, SGD([{"params": parameters[g::groups]} for g in range(groups)], lr=0.1), None)


def restored(model: ParameterStore, saved: ParameterStore) -> None:
    model.restore(Whole(saved.payloads(0, 2)["shared.pt"]))  # type: ignore[arg-type]  # as much of one as is asked


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (nn.Sequential(nn.Linear(2, 4)), r"'0\.weight': is of shape \(4, 2\), and in step-2 of \(3, 2\); .*: \(3, 2\)"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), r"'1\.weight': is not in step-2;"),
        (nn.Sequential(nn.Linear(2, 3, bias=False)), r"'0\.bias': is in step-2 only;"),
    ],
)
def test_what_differs_is_named(now: nn.Module, words: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"task\.model={words}"):
        restored(store(now), store(nn.Sequential(nn.Linear(2, 3))))


def test_an_optimizer_of_other_groups_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"task\.optimizer=\[1, 1\]: .* \[2\] in step-2; .* value: \[2\]"):
        restored(store(nn.Linear(2, 3), groups=2), store(nn.Linear(2, 3)))


def test_a_model_may_take_what_it_saved_under_other_names() -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.new = nn.Linear(2, 3)
            self.register_load_state_dict_pre_hook(self._rename)

        @staticmethod
        def _rename(module: nn.Module, state: dict[str, Any], *_: object) -> None:
            for part in ("weight", "bias"):
                state[f"new.{part}"] = state.pop(f"0.{part}")

    saved = nn.Sequential(nn.Linear(2, 3))
    model = Renamed()
    restored(store(model), store(saved))
    assert torch.equal(model.new.weight, saved[0].weight)


def test_what_is_alike_is_let_pass() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(4))
    held = shapes(module.state_dict())
    assert held == {"0.weight": (3, 2), "0.bias": (3,)}, "of what is not there yet no shape is known"
    same_model("step-2", {**held, "1.weight": (4, 3)}, held)
    same_model("step-2", held, held, every=held)
    same_optimizer("step-2", [2, 1], [2, 1])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        dist.DistBackendError("a peer is gone"),
        RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:1"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_what_is_no_fault_of_the_checkpoint_keeps_its_name(
    error: Exception, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(task({}), tmp_path)
    request = RestoreRequest(checkpoint=REF, directory=str(tmp_path))
    monkeypatch.setattr(Source, "open", lambda *_: Whole({}))

    def fails(_: object, found: Exception = error) -> None:
        raise found

    monkeypatch.setattr(ParameterStore, "restore", lambda _, source: fails(source))
    with pytest.raises(type(error)) as raised:
        state.restore(CAPABILITY, request)
    assert raised.value is error
    monkeypatch.setattr(ParameterStore, "restore", lambda _, source: fails(source, RuntimeError("it fails")))
    with pytest.raises(StorageError, match="step-2 cannot be restored: it fails"):
        state.restore(CAPABILITY, request)
