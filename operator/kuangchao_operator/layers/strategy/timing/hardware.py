"""What no arithmetic gives: what devices, links and frameworks do in a second. Pure.

The figures are data (`hardware.json`): datasheets for devices, one value per framework for how it overlaps and
launches work. Each names its source and what it was fitted to; some of these are narrow: `megatron-2022` was fitted to
plans of one model, and `h100-96` is the device of one benchmark (docs/bench.md). No figure is looked up by the model,
the run or the plan that it is for. `shipped.py` reads the file.
"""

import re
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText, Text
from kuangchao_contracts.fabric import Nanoseconds, Rate
from kuangchao_contracts.plan import Precision

Permille = Annotated[int, Field(ge=1, le=1000)]
Share = Annotated[int, Field(ge=0, le=1000)]
Passes = Annotated[int, Field(ge=0, le=1000)]

FALLBACK: Final = {
    Precision.FP8: Precision.BF16,
    Precision.BF16_PURE: Precision.BF16,
    Precision.BF16: Precision.FP16,
    Precision.FP16: Precision.FP32,
}
"""The format that a device without units for another computes in; fp16 for what is not named."""
DEFAULT: Final = "default"


class Accelerator(Contract):
    """One kind of device: its datasheet, and the usual node around it."""

    source: Text
    words: tuple[ShortText, ...]
    """A device is of this kind if its name has all of these as whole words; the entry with the longest words wins."""
    memory_gib: Annotated[int, Field(ge=0)] = 0
    """Tells entries with equal words apart; 0: any."""
    peak_tera: dict[Precision, Annotated[int, Field(ge=1)]]
    """Dense operations in 10^12 (fp32: without TF32), scaled by `peak_unit`."""
    peak_divisor: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    sustained_permille: Permille
    """Of the peak, what large matrix products reach under the power limit."""
    attention_permille: Permille
    """Of the peak, what a fused attention kernel reaches forward."""
    units: Annotated[int, Field(ge=1, le=4096)]
    """Multiprocessors: a matrix product is cut into tiles that they share."""
    memory_bytes_per_second: Rate
    island: Annotated[int, Field(ge=1, le=1024)]
    island_spans_nodes: bool = False
    """Whether one switch joins the devices of several nodes."""
    island_bytes_per_second: Rate
    host_bytes_per_second: Rate
    nics: Annotated[int, Field(ge=1, le=64)]
    nic_bytes_per_second: Rate

    def peak(self, precision: Precision) -> float:
        """Operations per second in a precision, or in what stands in for it."""
        while precision not in self.peak_tera:
            precision = FALLBACK.get(precision, Precision.FP16)
        return self.peak_tera[precision] * 1e12 / self.peak_divisor


class Software(Contract):
    """One framework. Passes count how often tokens of a width are read or written outside matrix products."""

    source: Text
    hidden_passes: Passes
    """Over the hidden width, in a layer's forward pass: norms, residuals, dropout, biases."""
    inner_passes: Passes
    """Over the ffn's inner width: activation, gate, bias."""
    expert_passes: Passes
    """Over every copy of a token that goes to an expert: routing, permuting, weighting."""
    score_passes: Passes
    """Over the attention scores where attention is not fused."""
    cast_passes: Passes
    """Over inputs and outputs of matrix products in fp8: scaling, casting, transposing."""
    attention_permille: Permille
    """Of what the device's best fused attention kernel reaches."""
    logit_passes: Passes
    """Over the logits, in 4-byte elements, in both directions."""
    host_forward_us: Annotated[int, Field(ge=0, le=100_000)]
    """Time in which the processor launches a layer's forward pass: the device cannot be faster."""
    host_expert_us: Annotated[int, Field(ge=0, le=100_000)]
    """The same for a layer with experts."""
    step_us: Annotated[int, Field(ge=0, le=10_000_000)]
    """Outside the passes, once a step: batch, loss, clipping, launches of the update."""
    tensor_overlap_permille: Share
    """Of tensor-parallel collectives, hidden behind the matrix products beside them."""
    expert_overlap_permille: Share
    expert_once_per_node: bool = False
    """Whether a token travels once to a node that has several of its experts."""
    data_overlap_permille: Share
    """Of the reduction of gradients and the gathering of what was updated, hidden behind passes long enough."""
    gather_overlap_permille: Share
    """Of the same under full sharding."""
    context_overlap_permille: Share
    """Of keys and values passing by, hidden behind attention to those before them."""
    pipeline_overlap_permille: Share
    """Of sends between stages where chunks interleave."""
    gradient_bytes: Annotated[int, Field(ge=1, le=8)]
    """Of an element while gradients are reduced."""
    partial_permille: Permille = 1000
    """Of a node's adapters, what replicas reach that are several but not all of its devices: older collectives leave a
    node by the adapter through which they came, which is far from the last device then (PXN, NCCL 2.12, mends it)."""
    update_bytes: Annotated[int, Field(ge=1, le=256)]
    """Read and written for each parameter that a rank updates."""


class Curves(Contract):
    """How work of limited size and links of real networks fall short of the figures of their datasheets."""

    source: Text
    tile: Annotated[int, Field(ge=1)]
    """Elements of the tile that a multiprocessor computes at a time."""
    wave_permille: Annotated[int, Field(ge=0, le=100_000)]
    """Waves of tiles that are lost at the ends of a matrix product."""
    depth: Annotated[int, Field(ge=0, le=100_000)]
    """Inner width that is lost filling and draining a tile."""
    memory_permille: Permille
    attention_backward_permille: Annotated[int, Field(ge=1000, le=10_000)]
    """Of its forward time, its backward pass: it computes the scores again."""
    kernel_ns: Nanoseconds
    island_permille: Permille
    host_permille: Permille
    nic_permille: Permille
    unrailed_permille: Permille
    """Of `nic_permille`, on networks that are not rail-optimised."""
    collective_ns: Nanoseconds
    waiting_permille: Annotated[int, Field(ge=0, le=1000)]
    """What launching takes longer with each doubling of the ranks that meet at every collective: all wait for the
    slowest."""
    island_latency_ns: Nanoseconds
    nic_latency_ns: Nanoseconds


class Hardware(Contract):
    """All of it."""

    version: Annotated[int, Field(ge=1)]
    accelerators: dict[ShortText, Accelerator]
    software: dict[ShortText, Software]
    curves: Curves

    def __hash__(self) -> int:
        """By version: equal figures have equal versions, and look-ups compare identities first."""
        return self.version

    def software_of(self, backend: str) -> Software:
        """A framework's figures; without any for its year (`torchtitan-2024`) those of any, or the usual ones."""
        found = self.software.get(backend) or self.software.get(re.sub(r"-\d{4}$", "", backend))
        return found or self.software[DEFAULT]

    def accelerator_of(self, model: str, memory_bytes: int) -> str | None:
        """The kind of a device by its driver's name and, among kinds with the same words, its memory.

        None where no kind has that name, and for a MIG slice: it has a part of its device's figures, and no links.
        """
        said = frozenset(re.findall(r"[a-z0-9]+", model.lower()))
        if "mig" in said:
            return None
        best: tuple[int, int, str] | None = None
        for name in sorted(self.accelerators):
            kind = self.accelerators[name]
            if said.issuperset(kind.words):
                off = abs(kind.memory_gib * 2**30 - memory_bytes) if kind.memory_gib and memory_bytes else 0
                candidate = (-sum(map(len, kind.words)), off, name)
                best = candidate if best is None or candidate < best else best
        return best[2] if best else None
