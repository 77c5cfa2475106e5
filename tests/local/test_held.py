"""What a rank holds of parameters, gradients and optimizer is no more than the planner counts, however split."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from kuangchao_contracts.plan import Optimizer, Precision, Sharding, TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.peaks import peaks
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_worker.layers.state.chain import chain, units
from kuangchao_worker.layers.state.split import schedule_reduction, split_data
from kuangchao_worker.tasks.text import transformer
from tests.local.gang import Gang, Seat
from tests.unit.strategy.footprint.settings import CALIBRATION
from tests.unit.worker.fakegate import make_plan

RANKS, LAYERS, HIDDEN, HEADS, FFN, SEQUENCE = 4, 3, 128, 4, 256, 4
SIZES = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kvHeads": HEADS, "ffn": FFN, "sequence": SEQUENCE}
MODEL = TransformerModel(layers=LAYERS, hidden=HIDDEN, heads=HEADS, ffn=FFN, vocab=256)
FRAMEWORK = "kuangchao"


@pytest.mark.parametrize(
    ("kind", "micro_batches"), [(Sharding.OPTIMIZER, 2), (Sharding.GRADIENTS, 1), (Sharding.GRADIENTS, 2)]
)
def test_a_rank_holds_no_more_than_the_planner_counts(gang: Gang, kind: Sharding, micro_batches: int) -> None:
    (held,) = gang.run(1, _held, kind, micro_batches)
    counted = _counted(kind, micro_batches)
    assert held <= counted < 1.8 * held


def _counted(kind: Sharding, micro_batches: int) -> int:
    """Bytes without activations and loss."""
    setting = Setting(
        model=MODEL, layout=Layout(data=RANKS), sequence_length=SEQUENCE, micro_batch=1, micro_batches=micro_batches,
        precision=Precision.FP32, optimizer=Optimizer.ADAMW, backend=FRAMEWORK, sharding=kind,
    )  # fmt: skip
    (peak,) = peaks(setting, CALIBRATION)
    return peak.allocated_bytes - peak.stage.activations - peak.stage.transient - peak.parts.loss


def _held(seat: Seat, kind: Sharding, micro_batches: int) -> int:
    """Bytes at the peak of the second step, without activations, on one rank of several that are made believe."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        return _tracked(kind, micro_batches)
    finally:
        dist.destroy_process_group()


def _tracked(kind: Sharding, micro_batches: int) -> int:
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh

    task = transformer({name: str(size) for name, size in SIZES.items()} | {"windows": "8"})
    module = task.model()
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("data",))
    plan = make_plan(RANKS, sharding=kind, accumulation=micro_batches, batch=RANKS * micro_batches)
    split_data(module, mesh, units(module, chain(module, task.rules)), plan)
    optimizer = task.optimizer(module.parameters())
    tracker = FSDPMemTracker(module, optimizer)
    tracker.track_inputs(())
    with tracker:
        for _ in range(2):
            for number in range(micro_batches):
                schedule_reduction(module, kind, last=number == micro_batches - 1)
                task.loss(module, task.dataset[torch.arange(1)]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    peak: dict[Any, int] = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    named = {getattr(part, "value", part): size for part, size in peak.items()}
    return named["Total"] - named["Activation"]
