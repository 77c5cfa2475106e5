"""Hardware with round figures, so that tests can say what must come out, and settings that vary little."""

from typing import Any

from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.plan import Optimizer, Precision, TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing.hardware import Accelerator, Curves, Hardware, Software
from kuangchao_operator.layers.strategy.timing.machine import Machine

GIGA = 10**9
GPU = Accelerator(
    source="round figures",
    words=("round",),
    memory_gib=80,
    peak_tera={Precision.BF16: 100, Precision.FP32: 10},
    sustained_permille=800,
    attention_permille=400,
    units=100,
    memory_bytes_per_second=1000 * GIGA,
    island=8,
    island_bytes_per_second=100 * GIGA,
    host_bytes_per_second=10 * GIGA,
    nics=8,
    nic_bytes_per_second=10 * GIGA,
)
CURVES = Curves(
    source="round figures",
    tile=32768,
    wave_permille=500,
    depth=256,
    memory_permille=800,
    attention_backward_permille=2500,
    kernel_ns=5000,
    island_permille=1000,
    host_permille=1000,
    nic_permille=1000,
    unrailed_permille=500,
    collective_ns=10_000,
    waiting_permille=100,
    island_latency_ns=1000,
    nic_latency_ns=10_000,
)
SOFTWARE = Software(
    source="round figures",
    hidden_passes=10,
    inner_passes=4,
    expert_passes=6,
    score_passes=5,
    cast_passes=2,
    attention_permille=1000,
    logit_passes=6,
    host_forward_us=0,
    host_expert_us=0,
    step_us=1000,
    tensor_overlap_permille=0,
    expert_overlap_permille=0,
    data_overlap_permille=500,
    gather_overlap_permille=500,
    context_overlap_permille=800,
    pipeline_overlap_permille=500,
    gradient_bytes=4,
    update_bytes=32,
)
HARDWARE = Hardware(version=1, accelerators={"round": GPU}, software={"default": SOFTWARE}, curves=CURVES)
LLAMA = TransformerModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)


def machine(nodes: int = 8, per_node: int = 8, fabric: Fabric | None = None) -> Machine:
    return Machine("round", per_node, nodes, fabric)


def changed(**changes: Any) -> Hardware:
    """The hardware with other figures of its framework."""
    return HARDWARE.replace(software={"default": SOFTWARE.replace(**changes)}, version=2)


def setting(model: TransformerModel = LLAMA, **changes: Any) -> Setting:
    base: dict[str, Any] = {
        "layout": Layout(),
        "sequence_length": 4096,
        "micro_batch": 1,
        "micro_batches": 8,
        "precision": Precision.BF16,
        "optimizer": Optimizer.ADAMW,
        "backend": "any",
    }
    return Setting(model=model, **{**base, **changes})
