"""The figures that the memory estimate rests on, each with its source.

Bytes of states are also in `footprint/calibration.json`, under "kuangchao", until plans rest on that; a test keeps both
equal.

Symbols follow the literature: s sequence length, b micro-batch, h hidden size, f ffn size, V vocabulary.
"""

from typing import Final, Literal, NamedTuple

from kuangchao_contracts.plan import Optimizer, Precision


class StateBytes(NamedTuple):
    """Bytes for each parameter on a rank that holds it in full; `copies` in another format, beside optimizer states."""

    parameter: int
    gradient: int
    copies: int


STATE_BYTES: Final[dict[Precision, StateBytes]] = {
    # With Adam 16, 18 and 20 bytes in all, as in Megatron-LM's dist_optimizer.md without sharding. bf16 is torch's
    # autocast, as our executor does it: fp32 parameters and gradients, and a cached bf16 cast of each parameter.
    # fp16 has fp32 main parameters and main gradients beside the half-size ones; bf16-pure and fp16-pure have nothing
    # beside them. fp8 is bf16 parameters with fp32 gradients and main parameters, and cached fp8 weights with their
    # transposes.
    Precision.FP32: StateBytes(parameter=4, gradient=4, copies=0),
    Precision.BF16: StateBytes(parameter=4, gradient=4, copies=2),
    Precision.FP16: StateBytes(parameter=2, gradient=2, copies=8),
    Precision.BF16_PURE: StateBytes(parameter=2, gradient=2, copies=0),
    Precision.FP16_PURE: StateBytes(parameter=2, gradient=2, copies=0),
    Precision.FP8: StateBytes(parameter=2, gradient=4, copies=6),
}
OPTIMIZER_BYTES: Final[dict[Optimizer, int]] = {
    # States are kept in fp32: none, one momentum, or two moments (torch.optim); two in bf16 or 8 bits where named so.
    Optimizer.SGD: 0,
    Optimizer.MOMENTUM: 4,
    Optimizer.ADAM: 8,
    Optimizer.ADAMW: 8,
    Optimizer.ADAMW_BF16: 4,
    Optimizer.ADAMW_8BIT: 2,
    Optimizer.MUON: 4,
}
ELEMENT_BYTES: Final[dict[Precision, int]] = {
    Precision.FP32: 4,
    Precision.BF16: 2,
    Precision.FP16: 2,
    Precision.BF16_PURE: 2,
    Precision.FP16_PURE: 2,
    Precision.FP8: 2,
}

ACTIVATION_FUSED_BASE: Final = 18
"""Bytes for each token and hidden unit of a layer with fused kernels, without the ffn part: Korthikanti et al. 2022,
"Reducing Activation Recomputation"; Megatron-LM theoretical_memory_usage.py: s*b*h*(18 + 4*f'/h)."""
ACTIVATION_FFN: Final = 4
ACTIVATION_TORCH_PERMILLE: Final = 1_885
"""Plain torch modules with fused attention keep more: 64.3 B for each token and hidden unit were measured on a 7B
decoder (Galvatron's layer profile) where the fused formula gives 34.1."""
LOGIT_BYTES: Final = 12
"""For each logit: the logit, its fp32 softmax and the gradient; torch cross entropy without fusion is at 10 to 16."""

RUNTIME_BYTES: Final[dict[Literal["cpu", "gpu"], int]] = {
    # cpu: anonymous memory of a process with torch 2.15, gloo and one DDP model, measured: 385 MiB.
    # gpu: CUDA context and NCCL buffers, 0.5 to 1 GiB by vendor guides; the upper end is taken.
    "cpu": 400 * 2**20,
    "gpu": 2**30,
}
RESERVED_PERCENT: Final[dict[Literal["cpu", "gpu"], int]] = {
    # What the allocator takes from the device for each byte in use: 1.26 to 1.50 was seen with torch's default CUDA
    # allocator, 1.1 with expandable segments; pods run with the default one.
    "cpu": 110,
    "gpu": 130,
}
USABLE_PERCENT: Final = 94
"""Share of the device's memory that a plan may count on; the rest is the system's."""
