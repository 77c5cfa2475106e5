"""Shipped figures against a published table that no figure was fitted to."""

import pytest
from tests.unit.strategy.footprint.settings import gpt
from tests.unit.strategy.timing.machines import setting

from kuangchao_contracts.plan import Precision, Recompute
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing.machine import Machine
from kuangchao_operator.layers.strategy.timing.shipped import load
from kuangchao_operator.layers.strategy.timing.step import step_time

NARAYANAN = [
    (24, 2304, 24, 1, 1, 32, 512, 137),
    (30, 3072, 32, 2, 1, 64, 512, 138),
    (36, 4096, 32, 4, 1, 128, 512, 142),
    (40, 6144, 48, 8, 1, 256, 1024, 135),
    (48, 8192, 64, 8, 2, 512, 1536, 138),
    (60, 10240, 80, 8, 4, 1024, 1792, 140),
    (80, 12288, 96, 8, 8, 1536, 2304, 148),
    (96, 16384, 128, 8, 16, 1920, 2160, 155),
    (105, 20480, 128, 8, 35, 2520, 2520, 163),
    (128, 25600, 160, 8, 64, 3072, 3072, 163),
]
"""Table 1 of Narayanan et al. 2021: layers, hidden, heads, tensor, pipeline, GPUs, batch; 10^12 operations a second of
the hardware on each A100-80GB, everything recomputed. The micro-batch, which it does not state, is the fastest."""


@pytest.mark.parametrize(("layers", "hidden", "heads", "tensor", "pipeline", "gpus", "batch", "published"), NARAYANAN)
def test_models_of_1_7_to_1008_billion_parameters(
    layers: int, hidden: int, heads: int, tensor: int, pipeline: int, gpus: int, batch: int, published: int
) -> None:
    data = gpus // (tensor * pipeline)

    def split(micro_batch: int) -> Setting:
        return setting(
            gpt(layers, hidden, heads),
            layout=Layout(tensor=tensor, pipeline=pipeline, data=data),
            sequence_length=2048,
            micro_batch=micro_batch,
            micro_batches=batch // (data * micro_batch),
            precision=Precision.FP16,
            recompute=Recompute.FULL,
            fused_attention=False,
            backend="megatron-2022",
        )

    sizes = [size for size in (1, 2, 4, 8, 16) if batch % (data * size) == 0]
    fastest = min(step_time(split(size), Machine("a100-80", 8, gpus // 8), load()) for size in sizes)
    assert fastest.hfu_ppm * 312 / 1e6 == pytest.approx(published, rel=0.10)
