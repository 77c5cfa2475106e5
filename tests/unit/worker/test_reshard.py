"""Checkpoints in pieces, without links: what is saved comes back under the same names, and a gap is an error."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR

from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import CheckpointCorruptError, InvalidInputError
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.layers.state.chain import chain
from kuangchao_worker.layers.state.entries import Entries, Holders, collect, install
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.reshard import fill, fill_from_whole, payloads
from kuangchao_worker.layers.state.split import check_rules
from kuangchao_worker.tasks.mlp import mlp

ORDER = [f"{layer}.{part}" for layer in ("0.0", "1.0", "2") for part in ("weight", "bias")]


@dataclass
class Files:
    """A checkpoint in memory."""

    files: dict[str, Any]
    checkpoint: CheckpointRef = field(
        default_factory=lambda: CheckpointRef(step=2, attempt=1, path="p", digest="0" * 64)
    )

    def read(self, name: str) -> dict[str, Any] | None:
        return self.files.get(name)

    def layouts(self) -> dict[int, dict[str, Any]]:
        return {int(n.split("-")[1][0]): c["entries"] for n, c in self.files.items() if n.startswith("layout")}


class Trainee:
    """A model that has made some steps."""

    def __init__(self, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        task = mlp({"dropout": "0"})
        self.module: nn.Module = task.model()
        self.optimizer = AdamW(self.module.parameters(), lr=0.1)
        self.scheduler = StepLR(self.optimizer, 1)
        self.task = task
        self.train(steps)

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = self.task.loss(self.module, self.task.dataset[torch.arange(8)])
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def entries(self) -> Entries:
        return collect(self.module, self.optimizer, self.scheduler)

    def install(self, entries: Entries) -> None:
        install(entries, self.module, self.optimizer, self.scheduler)


def test_a_look_at_an_optimizer_that_has_not_stepped_is_no_step() -> None:
    looked, other = Trainee(0, 0), Trainee(0, 0)
    steps = [value for name, value in looked.entries().tensors.items() if name.endswith(".step")]
    assert steps and all(float(step) == 0 for step in steps)
    assert looked.train(3) == other.train(3)


def test_what_is_saved_in_pieces_goes_on_bit_for_bit() -> None:
    one, other = Trainee(0, 2), Trainee(9, 0)
    files = payloads(one.entries(), Holders(None), 0, 2)
    expected = one.train(3)
    found = other.entries()
    fill(found, Files(files))
    other.install(found)
    assert other.train(3) == expected


def test_what_data_parallel_ranks_saved_goes_on_bit_for_bit() -> None:
    one, other = Trainee(0, 2), Trainee(9, 0)
    files = ParameterStore(one.module, one.optimizer, one.scheduler).payloads(0, 2)
    expected = one.train(3)
    found = other.entries()
    fill_from_whole(found, Files(files), ORDER)
    other.install(found)
    assert other.train(3) == expected


@pytest.mark.parametrize("what", ["optimizer.state.2.bias.exp_avg", "optimizer.param_groups.2.bias.lr"])
def test_an_entry_that_is_missing_is_named(what: str) -> None:
    files = payloads(Trainee(0, 2).entries(), Holders(None), 0, 2)
    files["layout-0.pt"]["entries"].pop(what, None)
    files["shard-0.pt"]["values"].pop(what, None)
    with pytest.raises(CheckpointCorruptError, match=f"does not hold all of {what}"):
        fill(Trainee(9, 0).entries(), Files(files))


def test_a_parameter_that_has_had_no_gradient_has_no_state_after_either() -> None:
    one = Trainee(0, 2)
    files = payloads(one.entries(), Holders(None), 0, 2)
    states = [name for name in files["layout-0.pt"]["entries"] if name.startswith("optimizer.state.2.bias.")]
    assert states
    for name in states:
        del files["layout-0.pt"]["entries"][name]
    other = Trainee(9, 0)
    found = other.entries()
    bare = fill(found, Files(files))
    assert bare == {"2.bias"}
    install(found, other.module, other.optimizer, other.scheduler, bare)
    parameters = dict(other.module.named_parameters())
    assert [name for name, parameter in parameters.items() if parameter not in other.optimizer.state] == ["2.bias"]


def test_a_checkpoint_of_an_optimizer_without_states_is_none_of_one_that_has_them() -> None:
    files = payloads(Trainee(0, 2).entries(), Holders(None), 0, 2)
    declared = files["layout-0.pt"]["entries"]
    for name in [name for name in declared if name.startswith("optimizer.state.")]:
        del declared[name]
    with pytest.raises(CheckpointCorruptError, match=r"does not hold all of optimizer\.state\."):
        fill(Trainee(9, 0).entries(), Files(files))


def test_a_piece_that_is_too_small_or_of_another_model_is_refused() -> None:
    files = payloads(Trainee(0, 2).entries(), Holders(None), 0, 2)
    declared = files["layout-0.pt"]["entries"]["module.0.0.weight"]
    whole = declared["size"]
    declared["size"] = (whole[0] - 1, whole[1])
    files["shard-0.pt"]["tensors"]["module.0.0.weight"] = torch.zeros(declared["size"])
    with pytest.raises(CheckpointCorruptError, match=r"does not hold all of module\.0\.0\.weight"):
        fill(Trainee(9, 0).entries(), Files(files))
    declared["shape"] = (1, 1)
    with pytest.raises(InvalidInputError, match=r"task\.model='0\.0\.weight': is of shape .*, and in p of \(1, 1\);"):
        fill(Trainee(9, 0).entries(), Files(files))
    del files["layout-0.pt"]["entries"]["module.0.0.weight"]
    with pytest.raises(InvalidInputError, match=r"task\.model='0\.0\.weight': is not in p;"):
        fill(Trainee(9, 0).entries(), Files(files))


def test_a_whole_checkpoint_of_another_model_or_optimizer_is_refused_by_name() -> None:
    one = Trainee(0, 2)
    store = ParameterStore(one.module, one.optimizer, one.scheduler)

    def refused(error: type[Exception], match: str, content: dict[str, Any]) -> None:
        with pytest.raises(error, match=match):
            fill_from_whole(Trainee(9, 0).entries(), Files({"shared.pt": content}), ORDER)

    content = store.payloads(0, 2)["shared.pt"]
    content["module"]["2.bias"] = torch.zeros(5)
    refused(InvalidInputError, r"task\.model='2\.bias': is of shape .*, and in p of \(5,\); .* value: \(5,\)", content)
    del content["module"]["2.bias"]
    refused(InvalidInputError, r"task\.model='2\.bias': is not in p", content)
    content = store.payloads(0, 2)["shared.pt"]
    content["optimizer"]["param_groups"][0]["params"].append(6)
    refused(InvalidInputError, r"task\.optimizer=\[6\]: .* and \[7\] in p", content)
    content = store.payloads(0, 2)["shared.pt"]
    for state in content["optimizer"]["state"].values():
        del state["exp_avg"]
    refused(CheckpointCorruptError, r"p does not hold all of optimizer\.state\.0\.0\.weight\.exp_avg", content)


def test_a_copy_does_not_change_with_later_steps() -> None:
    one = Trainee(0, 2)
    saved = payloads(one.entries(), Holders(None), 0, 2)["shard-0.pt"]["tensors"]["module.2.bias"]
    before = saved.clone()
    one.train(1)
    assert torch.equal(saved, before)
    assert not torch.equal(one.module.get_parameter("2.bias"), before)


def test_what_the_whole_model_has_not_is_named_whatever_this_rank_has_of_it() -> None:
    """A stage of a pipeline asks for its part alone, so a smaller model would find all that it asks for."""
    one, other = Trainee(0, 2), Trainee(9, 0)
    files = Files(payloads(one.entries(), Holders(None), 0, 2))
    shared = Files(ParameterStore(one.module, one.optimizer, one.scheduler).payloads(0, 2))
    fill(other.entries(), files, ORDER)
    fill_from_whole(other.entries(), shared, ORDER, ORDER)
    why = r"task\.model='2\.bias': is in p only"
    part = Entries({name: value for name, value in other.entries().tensors.items() if "2.bias" not in name}, {})
    with pytest.raises(InvalidInputError, match=why):
        fill(part, files, ORDER[:-1])
    with pytest.raises(InvalidInputError, match=why):
        fill_from_whole(part, shared, ORDER, ORDER[:-1])


@pytest.mark.parametrize("compiled", ["one", "other"])
def test_a_part_that_is_compiled_has_the_name_that_it_has_otherwise(compiled: str) -> None:
    """`torch.compile` gives a module another name, which is none of a checkpoint's, nor of another plan's."""
    one, other = Trainee(0, 2), Trainee(9, 0)
    changed = one if compiled == "one" else other
    changed.module.add_module("0", torch.compile(changed.module.get_submodule("0")))
    files = Files(ParameterStore(one.module, one.optimizer, one.scheduler).payloads(0, 2))
    assert [*files.files["shared.pt"]["module"]] == ORDER
    for model in (Trainee(7, 0), other):
        found = model.entries()
        fill_from_whole(found, files, ORDER)
        model.install(found)
    ParameterStore(other.module, other.optimizer, other.scheduler).restore(files)  # type: ignore[arg-type]  # see above
    for mine, theirs in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("check", [chain, check_rules])
def test_rules_for_a_model_that_is_compiled_say_how_it_keeps_its_names(check: Callable[..., Any]) -> None:
    rules = ParallelRules(chain=("0", "1", "9"), tensor={"9": TensorStyle.COLUMNS})
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(InvalidInputError, match=r"='9': names no module of the model$"):
        check(module, rules)
    with pytest.raises(InvalidInputError, match=r"model; torch\.compile\(net\).*net\.compile\(\)"):
        check(torch.compile(module), rules)
