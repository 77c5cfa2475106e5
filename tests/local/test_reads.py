"""A reader beside training in pieces: this rank's pieces of one step, also while torch has whole ones in place."""

import threading
from typing import Any

import pytest
import torch

from kuangchao_contracts.oplogfile import Pinned
from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_contracts.ports.state import SubmitGradients
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.service import StateService
from kuangchao_worker.rank.wiring import make_parameters
from kuangchao_worker.tasks.mlp import mlp
from tests.local.gang import Gang, Seat, built
from tests.local.training import CPU, split

FULL = {"sharding": Sharding.FULL}
TASK = mlp({"dropout": "0", "hidden": "32"})
Tensors = dict[str, torch.Tensor]


def _read(seat: Seat, mesh: Any, plan: ParallelPlan) -> tuple[Tensors, Tensors]:
    store: Any = make_parameters(TASK, CPU, 0, plan, rank=seat.rank)
    store.connect(mesh)
    state = StateService(store, seat.rank, 0, ShardWriter(seat.rank, lambda *_: None), lambda: Pinned(0, ""))
    found: list[Tensors] = []

    def read() -> None:
        with state.reading() as weights:
            assert weights.step == 1
            found.append({name: tensor.clone() for name, tensor in weights.tensors.items()})

    def beside(*_: Any) -> None:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(30)

    for step in (1, 2):
        if step == 2:
            expected = {name: tensor.clone() for name, tensor in store.parameters().items()}
            next(iter(store.module.children())).register_forward_hook(beside)
        store.compute(TASK.loss, TASK.dataset[torch.arange(8)]).backward()  # type: ignore[index]
        state.submit_gradients(seat.capability, SubmitGradients(step_id=step))
    (seen,) = found
    return seen, expected


@pytest.mark.parametrize("sizes", [FULL, {"sharding": Sharding.OPTIMIZER}], ids=["in pieces", "whole between"])
def test_a_reader_in_a_forward_pass_sees_pieces_of_the_step_before(gang: Gang, sizes: dict[str, Any]) -> None:
    ranks = gang.run(2, built, split(data=2, **sizes), _read)
    for seen, expected in ranks:
        assert seen.keys() == expected.keys()
        assert all(torch.equal(seen[name], tensor) for name, tensor in expected.items())
    whole = {name: p.numel() for name, p in TASK.model().named_parameters()}
    assert {name: sum(seen[name].numel() for seen, _ in ranks) for name in whole} == whole
