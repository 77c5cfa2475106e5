"""Styles that torch cannot give a module are refused before anything trains, by the module's name."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.rules import ParallelRules, TensorStyle
from kuangchao_worker.layers.state.split import check_held
from kuangchao_worker.tasks.found.find import find_rules
from kuangchao_worker.tasks.mlp import mlp

STYLES = {"up": TensorStyle.COLUMNS, "down": TensorStyle.ROWS}


def net(change: Callable[[nn.Linear], nn.Module] = lambda layer: layer) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            first=nn.Linear(16, 4),
            norm=nn.LayerNorm(4),
            up=change(nn.Linear(4, 8)),
            act=nn.ReLU(),
            down=nn.Linear(8, 1),
        )
    )


def bare(layer: nn.Linear) -> nn.Module:
    """A layer whose one weight is in no module below."""
    layer.scale = nn.Parameter(torch.ones(1))
    return layer


@pytest.mark.parametrize("style", [TensorStyle.COLUMNS, TensorStyle.ROWS, TensorStyle.HEAD])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (parametrizations.weight_norm, r"computes its weight from parametrizations\.weight\.original0"),
        (parametrizations.spectral_norm, r"computes its weight from parametrizations\.weight\.original"),
        (weight_norm, "computes its weight from bias"),
        (lambda _: nn.Conv1d(4, 8, 1), "is a Conv1d; that divides Linear and Embedding"),
        (nn.Sequential, "is a Sequential; that divides Linear and Embedding"),
    ],
    ids=["weight norm", "spectral norm", "old weight norm", "convolution", "several modules"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_weight_that_is_no_parameter_of_a_layer_is_not_divided(
    style: TensorStyle, change: Callable[[nn.Linear], nn.Module], message: str
) -> None:
    rules = ParallelRules(tensor={**STYLES, "up": style})
    with pytest.raises(InvalidInputError, match=rf"task\.rules\.tensor='up': is told {style.value} and .*{message}"):
        check_held(net(change), rules, sequence=False)


def test_layers_with_weights_of_their_own_are_divided() -> None:
    check_held(net(), ParallelRules(tensor=STYLES), sequence=True)
    check_held(net(bare), ParallelRules(tensor=STYLES), sequence=True)


def test_tokens_are_divided_in_a_norm_and_not_in_what_holds_one() -> None:
    module, rules = nn.Sequential(nn.Sequential(nn.LayerNorm(4))), ParallelRules(tensor={"0": TensorStyle.SEQUENCE})
    check_held(module, rules, sequence=False)
    with pytest.raises(InvalidInputError, match=r"tensor='0': .*holds 0\.weight.*nearest legal value: 0\.0"):
        check_held(module, rules, sequence=True)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_what_computes_its_weight_is_found_to_be_whole() -> None:
    assert set(find_rules(replace(mlp({}), model=net)).rules.tensor) == {"up", "down"}
    for change in (parametrizations.weight_norm, parametrizations.spectral_norm, weight_norm):
        assert find_rules(replace(mlp({}), model=partial(net, change))).rules.tensor == {}
