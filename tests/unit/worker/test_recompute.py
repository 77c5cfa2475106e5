"""Recomputation: what the backward pass computes again, and that it comes to the same gradients."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Recompute
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.layers.state.recompute import FUSED_ATTENTION, Keep, recompute
from kuangchao_worker.tasks import NO_RULES
from kuangchao_worker.tasks.measure import META, kept_bytes
from kuangchao_worker.tasks.text import transformer

LAYERS, HIDDEN, SEQUENCE = 3, 32, 16
SIZES = {"layers": "3", "hidden": "32", "heads": "4", "kvHeads": "2", "ffn": "64", "sequence": "16", "windows": "8"}
TASK = transformer({**SIZES, "dropout": "0.2"})
PRODUCTS = "aten.mm.default"
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


class Counted(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


def backward(module: nn.Module, inputs: torch.Tensor) -> tuple[Counter[str], torch.Tensor]:
    """Operators of the backward pass, and all gradients."""
    torch.manual_seed(1)
    loss = module(inputs).square().mean()
    with Counted() as counted:
        loss.backward()
    return counted.seen, torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def decoder(kind: Recompute) -> nn.Module:
    torch.manual_seed(0)
    module = TASK.model()
    recompute(module, TASK.rules, kind)
    return module


@pytest.mark.parametrize(("kind", "products", "attention"), [(Recompute.FULL, 7, 1), (Recompute.SELECTIVE, 3, 0)])
def test_a_layer_computes_again_what_it_does_not_keep(kind: Recompute, products: int, attention: int) -> None:
    tokens = torch.arange(2 * SEQUENCE).view(2, SEQUENCE)
    plain, expected = backward(decoder(Recompute.NONE), tokens)
    module = decoder(kind)
    seen, found = backward(module, tokens)
    assert torch.equal(found, expected), "dropout draws the same numbers again"
    assert seen[PRODUCTS] - plain[PRODUCTS] == LAYERS * products
    assert seen[ATTENTION] - plain[ATTENTION] == LAYERS * attention
    assert list(module.state_dict()) == list(TASK.model().state_dict())


def test_full_recomputation_keeps_a_hidden_state_for_each_layer() -> None:
    kept = {}
    for kind in (Recompute.NONE, Recompute.FULL):
        with META:
            module = TASK.model()
        recompute(module, TASK.rules, kind)
        kept[kind] = kept_bytes(TASK, module, 2) - kept_bytes(TASK, module, 1)
    with META:
        ends = TASK.model()
    ends.blocks = nn.ModuleList()
    without = kept_bytes(TASK, ends, 2) - kept_bytes(TASK, ends, 1)
    assert kept[Recompute.FULL] <= without + LAYERS * SEQUENCE * HIDDEN * 4 < kept[Recompute.NONE]


class Dropping(nn.Module):
    """Attention with dropout of its own, and more dropout behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.inner(hidden).unsqueeze(1)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        return nn.functional.dropout(mixed.squeeze(1), 0.5)


@pytest.mark.parametrize("kind", [Recompute.FULL, Recompute.SELECTIVE])
def test_attention_that_drops_out_draws_the_same_again(kind: Recompute) -> None:
    found = []
    for how in (Recompute.NONE, kind):
        torch.manual_seed(0)
        module = nn.Sequential(Dropping(), Dropping())
        recompute(module, NO_RULES, how)
        found.append(backward(module, torch.ones(2, 4, 8))[1])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("dropout", "kept"), [(0.0, CheckpointPolicy.MUST_SAVE), (0.1, CheckpointPolicy.PREFER_RECOMPUTE)]
)
def test_fused_attention_is_kept_unless_it_draws(dropout: float, kept: CheckpointPolicy) -> None:
    context = SelectiveCheckpointContext(is_recompute=False)
    for operator in FUSED_ATTENTION:
        names = [argument.name for argument in operator._schema.arguments]
        given = [dropout if name == "dropout_p" else None for name in names]
        assert Keep()(context, operator, *given) is kept
        assert Keep()(context, operator, dropout_p=dropout) is kept


def test_a_model_of_which_nothing_is_said_to_repeat_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"task.rules.chain.*recompute full"):
        recompute(Dropping(), ParallelRules(), Recompute.FULL)


@pytest.mark.parametrize("kind", [Recompute.FULL, Recompute.SELECTIVE])
def test_links_that_count_batches_are_refused(kind: Recompute) -> None:
    counting = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with pytest.raises(InvalidInputError, match=rf"plan\.recompute='{kind.value}'.*running statistics of 0\.1.*none"):
        recompute(counting, NO_RULES, kind)
    recompute(counting.eval(), NO_RULES, kind)
