"""Weights are changed by state alone: whatever else writes to them is found, named and placed, and nothing is saved."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kuangchao_contracts import errors as e
from kuangchao_contracts.ports.state import RestoreRequest, SaveRequest, SnapshotRequest, SubmitGradients
from kuangchao_worker.layers.state.seal import Owned, Seal, WriteLease
from kuangchao_worker.layers.state.snapshots import digest
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.parts import CAPABILITY, Loop, committed, make_state, save, train

LAST = 7
Act = Callable[[nn.Module], Any]


def weight(module: nn.Module) -> nn.Parameter:
    return next(module.parameters())


@torch.no_grad()
def add(module: nn.Module) -> None:
    weight(module).add_(1.0)


def through_data(module: nn.Module) -> None:
    weight(module).data.mul_(1.5)


def as_array(module: nn.Module) -> None:
    weight(module).detach().numpy()[0, 0] += 1.0


def swap_memory(module: nn.Module) -> None:
    weight(module).data = torch.zeros_like(weight(module))


def put_another(module: nn.Module) -> None:
    linear = next(part for part in module.modules() if isinstance(part, nn.Linear))
    linear.weight = nn.Parameter(linear.weight.detach().clone())


def load(module: nn.Module) -> None:
    module.load_state_dict({name: tensor + 1 for name, tensor in module.state_dict().items()})


AT_ONCE: dict[str, Act] = {"in place": add, "loads a state": load}
IN_TURN: dict[str, Act] = {
    "through .data": through_data, "as an array": as_array, "other memory": swap_memory, "another": put_another,
}  # fmt: skip


def planted(act: Act, at: int, *, again: bool = False) -> Task:
    """The mlp task, whose loss does something to the model at a step, or from there on."""
    task, calls = mlp({}), 0

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == at or (again and calls > at):
            act(module)
        return task.loss(module, batch)

    return replace(task, loss=loss)


def run(folder: Path, task: Task, steps: int = 20) -> Loop:
    loop = Loop(folder, task, steps=steps)
    loop.state.close_to_others()
    loop.executor.run(None)
    return loop


@pytest.mark.parametrize("act", AT_ONCE.values(), ids=AT_ONCE)
def test_a_write_that_torch_counts_is_found_in_its_step(tmp_path: Path, act: Act) -> None:
    with pytest.raises(e.ParameterTamperedError, match=r"rank 0, step 3: parameter \S+weight was written to") as found:
        run(tmp_path, planted(act, 3))
    assert found.value.code == "ParameterTampered"


@pytest.mark.parametrize("act", IN_TURN.values(), ids=IN_TURN)
def test_any_other_write_is_found_once_it_is_the_parameters_turn(tmp_path: Path, act: Act) -> None:
    count = len(list(mlp({}).model().parameters()))
    with pytest.raises(e.ParameterTamperedError, match=r"rank 0, step \d+: .*parameter \S+weight") as found:
        run(tmp_path, planted(act, 3, again=True))
    step = int(str(found.value).split("step ")[1].split(":")[0])
    assert 3 <= step < 3 + count


def test_what_state_does_itself_is_no_fault(tmp_path: Path) -> None:
    task = mlp({"dropout": "0.5", "horizon": "20"})
    straight = [float(v) for v in losses(tmp_path / "a", task)]
    assert len(set(straight)) == 20
    state = make_state(task, tmp_path)
    state.close_to_others()
    save(state, tmp_path, 0)
    train(state, task, 1, 4)
    save(state, tmp_path, 4)
    ref = committed(tmp_path, 4)
    state.restore(CAPABILITY, RestoreRequest(checkpoint=ref, directory=str(tmp_path / ref.path)))
    train(state, task, 5, 8)


def losses(folder: Path, task: Task) -> list[str]:
    folder.mkdir()
    run(folder, task)
    return [
        line.split('"lossValue": ')[1].rstrip("}") for line in (folder / "job/metrics.jsonl").read_text().splitlines()
    ]


def test_weights_that_are_no_numbers_are_no_fault(tmp_path: Path) -> None:
    module = mlp({}).model()
    with torch.no_grad():
        weight(module).fill_(float("nan"))
    Seal(Owned(module, torch.optim.SGD(module.parameters(), lr=0.1), None), 0).check(1)


def test_the_optimizer_steps_for_state_only(tmp_path: Path) -> None:
    task, state = steal(tmp_path, lambda optimizer, _: optimizer.step())
    with pytest.raises(e.UnleasedWriteError, match=r"rank 0: optimizer\.step was called by other code"):
        train(state, task, 1, 3)


@pytest.mark.parametrize(
    "act", [lambda o, _: o.param_groups[0].update(lr=1.0), lambda _, s: s.step()], ids=["rate", "schedule"]
)
def test_learning_rates_are_those_of_state(tmp_path: Path, act: Callable[..., Any]) -> None:
    task, state = steal(tmp_path, act)
    with pytest.raises(e.ParameterTamperedError, match=r"rank 0, step 2: a learning rate was changed"):
        train(state, task, 1, 3)


def steal(folder: Path, act: Callable[[Any, Any], Any]) -> tuple[Task, Any]:
    """A task that keeps hold of its optimizer and schedule and does something to them in step 2."""
    task, held, calls = mlp({"horizon": "20"}), [], 0

    def optimizer(parameters: Any) -> Any:
        held.append(task.optimizer(parameters))
        return held[0]

    def scheduler(of: Any) -> Any:
        assert task.scheduler is not None
        held.append(task.scheduler(of))
        return held[1]

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            act(*held)
        return task.loss(module, batch)

    made = replace(task, optimizer=optimizer, scheduler=scheduler, loss=loss)
    state = make_state(made, folder)
    state.close_to_others()
    return made, state


def test_nothing_is_saved_of_weights_that_somebody_else_wrote(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    state.close_to_others()
    train(state, task, 1, 2)
    add(state._store.forward())  # type: ignore[attr-defined]  # the store behind the port
    with pytest.raises(e.ParameterTamperedError, match="step 2"):
        state.save(CAPABILITY, SaveRequest(step=2, directory=str(tmp_path / "step-2.att-1.tmp")))
    assert not (tmp_path / "step-2.att-1.tmp").exists()
    with pytest.raises(e.ParameterTamperedError, match="step 3"):
        state.submit_gradients(CAPABILITY, SubmitGradients(step_id=3))


def test_writes_are_serial() -> None:
    lease = WriteLease(3)
    with (
        lease.held("save"),
        pytest.raises(e.ConflictError, match="rank 3: submit_gradients while"),
        lease.held("submit_gradients"),
    ):
        pass
    with lease.held("submit_gradients"):
        pass


# ---- reads


def test_a_read_sees_a_snapshot_that_is_renewed_every_ten_steps(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    seen = []
    for step in range(1, 23):
        train(state, task, step, step)
        view = state.snapshot(CAPABILITY, SnapshotRequest())
        seen.append((view.step, view.sha256))
    assert [step for step, _ in seen] == [1] * 10 + [11] * 10 + [21] * 2
    assert len(set(seen)) == 3


def test_evaluation_gets_a_copy_and_cannot_write_to_the_weights(tmp_path: Path) -> None:
    task = mlp({})
    state = make_state(task, tmp_path)
    train(state, task, 1, 2)
    store: Any = state._store
    before = digest(store.parameters())
    copy = store.complete(task.model)
    size = sum(p.numel() * p.element_size() for p in copy.parameters())
    assert size <= 1.1 * sum(p.numel() * p.element_size() for p in store.module.parameters())
    for name, parameter in copy.named_parameters():
        assert torch.equal(parameter, store.module.get_parameter(name))
    load(copy)
    assert digest(store.parameters()) == before
