"""Layers that the graph of a loss does not show are noticed, so that their gradients are added up in another way."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.layers.state import hidden
from kuangchao_worker.layers.state.parameters import ParameterStore


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_goes_back_by_itself_hides_its_layers(reentrant: bool) -> None:
    first, inner = nn.Linear(3, 3), nn.Linear(3, 3)
    loss = checkpoint(inner, first(torch.ones(2, 3)), use_reentrant=reentrant).square().mean()
    assert hidden.hides(loss) is reentrant
    assert not hidden.hides(inner(torch.ones(2, 3)).mean().detach())


def test_gradients_are_sent_in_buckets_of_one_type_in_the_order_of_parameters() -> None:
    sizes = [(hidden.BUCKET_BYTES // 4, torch.float32), (3, torch.float32), (5, torch.float32), (2, torch.float64)]
    parameters = [nn.Parameter(torch.empty(size, dtype=dtype, device="meta")) for size, dtype in sizes]
    found = [[parameter.numel() for parameter in bucket] for bucket in hidden._buckets(parameters)]
    assert found == [[hidden.BUCKET_BYTES // 4], [3, 5], [2]]
    assert list(hidden._buckets([])) == []


def test_a_checkpoint_that_begins_later_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(2, 2)
    store = ParameterStore(module, SGD(module.parameters()), None)
    store.wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    said = r"use_reentrant=True.*nearest legal value: use_reentrant=False"
    with pytest.raises(InvalidInputError, match=said), store.reduction(last=True):
        raise RuntimeError("Expected to mark a variable ready only once. This error is caused by ...")
    with pytest.raises(RuntimeError, match="another"), store.reduction(last=True):
        raise RuntimeError("another")
    monkeypatch.setattr(hidden, "any_hides", lambda **given: given["mine"])
    store.taken = "plug-in quantize"
    with pytest.raises(InvalidInputError, match="hides layers from plug-in quantize"):
        store._hides(checkpoint(module, torch.ones(1, 2).requires_grad_(), use_reentrant=True).sum())
