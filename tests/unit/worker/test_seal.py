"""Weights are changed by state alone: whatever else writes to them is found, named and placed, and nothing is saved."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kuangchao_contracts import errors as e
from kuangchao_contracts.ports.state import RestoreRequest, SaveRequest, SnapshotRequest, SubmitGradients
from kuangchao_worker.layers.state.assembly import assembled
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
    add(state._store.module)  # type: ignore[attr-defined]  # the store behind the port
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


@pytest.mark.parametrize("rate", [1, torch.tensor(0.1)], ids=["whole", "tensor"])
def test_learning_rates_are_those_of_state_whatever_number_they_are(tmp_path: Path, rate: Any) -> None:
    optimizers: list[Any] = []

    def optimizer(parameters: Any) -> Any:
        optimizers.append(torch.optim.SGD(parameters, lr=rate, foreach=False))
        return optimizers[0]

    def act(_: nn.Module) -> None:
        (group,) = optimizers[0].param_groups
        group["lr"] = group["lr"].add_(1) if isinstance(rate, torch.Tensor) else 2

    with pytest.raises(e.ParameterTamperedError, match=r"rank 0, step 3: a learning rate was changed"):
        run(tmp_path, replace(planted(act, 3), optimizer=optimizer, scheduler=None))


def test_the_schedule_writes_no_weights_though_state_calls_it(tmp_path: Path) -> None:
    task, state = scheduled(tmp_path, lambda step, module: add(module) if step == 2 else None)
    with pytest.raises(
        e.ParameterTamperedError, match=r"rank 0, step 2: parameter \S+ was written to when the schedule"
    ):
        train(state, task, 1, 3)


def test_a_schedule_that_looks_at_weights_is_no_fault(tmp_path: Path) -> None:
    task, state = scheduled(tmp_path, lambda _, module: weight(module).norm())
    train(state, task, 1, 3)


def scheduled(folder: Path, act: Callable[[int, nn.Module], Any]) -> tuple[Task, Any]:
    """A task whose schedule does something to the model as each step ends."""
    task, made = mlp({}), []

    def model() -> nn.Module:
        made.append(task.model())
        return made[0]

    def rate(step: int) -> float:
        if made and step:
            act(step, made[0])
        return 1.0

    own = replace(task, model=model, scheduler=lambda of: torch.optim.lr_scheduler.LambdaLR(of, rate))
    state = make_state(own, folder)
    state.close_to_others()
    return own, state


def test_what_the_optimizer_keeps_is_states(tmp_path: Path) -> None:
    task, state = steal(tmp_path, lambda optimizer, _: [s["exp_avg"].zero_() for s in optimizer.state.values()])
    with pytest.raises(
        e.ParameterTamperedError, match=r"step 2: what the optimizer keeps of parameter \S+ was changed"
    ):
        train(state, task, 1, 3)


def test_another_thread_cannot_step_the_optimizer_while_state_does() -> None:
    lease, told, module = WriteLease(3), [], mlp({}).model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    lease.guard(optimizer)

    def step() -> None:
        with pytest.raises(e.UnleasedWriteError) as found:
            optimizer.step()
        told.append(found.value)

    with lease.held("submit_gradients"):
        optimizer.step()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert len(told) == 1


def test_what_was_frozen_gets_no_gradient_later(tmp_path: Path) -> None:
    """Its gradient would reach no other rank, whose weights would then be others."""
    task = planted(lambda module: module.requires_grad_(True), 3)

    def model() -> nn.Module:
        module = task.model()
        weight(module).requires_grad_(False)
        return module

    with pytest.raises(e.InvalidInputError, match=r"task\.model='0\.0\.weight': required no gradient .* one at step 3"):
        run(tmp_path, replace(task, model=model))


def test_an_optimizer_of_what_is_not_the_models_is_refused(tmp_path: Path) -> None:
    task, extra = mlp({}), nn.Parameter(torch.ones(1))
    state = make_state(replace(task, optimizer=lambda given: torch.optim.SGD([*given, extra], lr=0.1)), tmp_path)
    with pytest.raises(e.InvalidInputError, match=r"task\.optimizer='1 tensors': are updated and no parameters"):
        state.close_to_others()


def test_modules_of_torchscript_are_no_fault(tmp_path: Path) -> None:
    task = mlp({"dropout": "0"})
    run(tmp_path, replace(task, model=lambda: torch.jit.script(task.model())))


def test_a_copy_has_the_names_of_a_module_that_is_compiled() -> None:
    """torch gives the names of what is in pieces without that."""
    linear = nn.Linear(2, 2)
    for state in (linear.state_dict(), {f"_orig_mod.{name}": value for name, value in linear.state_dict().items()}):
        copy = assembled(lambda: nn.ModuleDict({"_orig_mod": nn.Linear(2, 2)}), state)
        assert torch.equal(copy.get_parameter("_orig_mod.weight"), linear.weight)


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
