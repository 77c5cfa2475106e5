"""Models measured on the meta device: nothing of their size is ever allocated."""

import json
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from kuangchao_contracts.rules import TaskRule
from kuangchao_worker.tasks import Task, TaskNotFoundError
from kuangchao_worker.tasks import measure as measuring

HERE = __name__


def tiny(args: dict[str, str]) -> Task:
    """Four numbers in, three hidden, one out."""
    sys.stdout.write("user code may print\n")
    return _task(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, int(args.get("out", "1")))))


def looks_at_values(args: dict[str, str]) -> Task:
    return _task(lambda: nn.Linear(4, 1), looks=True)


def huge() -> nn.Module:
    """4 TB of parameters in fp32."""
    return nn.Linear(10**6, 10**6, bias=False)


class Tied(nn.Module):
    """One matrix in two places, a frozen bias and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))


def empty() -> nn.Module:
    return nn.ReLU()


def number() -> int:
    return 7


def _task(model: Callable[[], nn.Module], *, looks: bool = False) -> Task:
    def loss(module: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = module(batch[0])
        return out.pow(2).mean() * (out.sum().item() if looks else 1)

    data = TensorDataset(torch.randn(8, 4))
    return Task(model=model, dataset=data, loss=loss, optimizer=lambda parameters: SGD(parameters, lr=0.1))


def test_a_task_is_measured_with_what_a_sample_keeps() -> None:
    model, _, rules, found, remark = measuring.measure(f"{HERE}:tiny", {"out": "2"})
    assert rules == (TaskRule.TENSOR, TaskRule.PIPELINE), "a sequential shows how it is split"
    assert found.tensor == {"0": "columns", "2": "rows"}
    assert remark == ""
    assert (model.parameters, model.trainable_parameters, model.buffer_bytes) == (15 + 8, 15 + 8, 0)
    inputs, hidden, out = 4, 3, 2
    assert model.activation_bytes_per_sample == 4 * (inputs + hidden + out)


def test_a_module_that_no_machine_could_hold() -> None:
    model, _, rules, _, remark = measuring.measure(f"{HERE}:huge", {})
    assert rules == ()
    assert model.parameters == 10**12
    assert model.activation_bytes_per_sample == 0
    assert remark.startswith(measuring.UNKNOWN)


def test_shared_parameters_count_once_and_frozen_ones_are_not_trained() -> None:
    model = measuring.measure(f"{HERE}:Tied", {}).model
    assert (model.parameters, model.trainable_parameters, model.buffer_bytes) == (30, 25, 24)


def test_a_loss_that_looks_at_values_leaves_activations_out_and_says_so() -> None:
    model, _, _, _, remark = measuring.measure(f"{HERE}:looks_at_values", {})
    assert model.parameters == 5
    assert model.activation_bytes_per_sample == 0
    assert remark.startswith(f"{measuring.UNKNOWN}: RuntimeError")


@pytest.mark.parametrize("name", ["empty", "number", "missing", "GIB"])
def test_a_name_that_leads_to_no_model(name: str) -> None:
    with pytest.raises(TaskNotFoundError, match=name):
        measuring.measure(f"{HERE}:{name}", {})


def test_the_answer_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert measuring.main([f"{HERE}:tiny", "out=1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["model"]["parameters"] == 19
    assert "user code may print" in printed.err
    assert measuring.main([f"{HERE}:missing"]) == measuring.BAD_NAME
    assert "missing" in capsys.readouterr().err
