"""What each source's rows mean: which framework made them, and what the source leaves to the framework or the planner.

The memory figure of a row is, by source:

- Megatron-LM golden values: the peak of allocated memory on the last rank, so of the last stage; `alloc_mem_gib` is
  what stays allocated between steps, not a peak.
- torchtitan: the most the allocator had reserved on the worst rank.
- Megatron-Bridge: the peak of allocated memory that the last rank logs.
- Galvatron: model states plus the peak of activations on one rank.
- Korthikanti (Calculon): the paper's formula, states without embeddings, fullest stage: arithmetic, not a measurement.
- llm-foundry and vTrain: none; that the row ran says that it fitted.
- reports by users: what the user read off; llama-cookbook's peak is reserved memory.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from bench.planner.rows import Row


class Figure(StrEnum):
    """What `peak_mem_gib` holds."""

    ALLOCATED = "allocated"
    LAST_STAGE = "last stage"
    RESERVED = "reserved"
    FORMULA = "formula"


class Split(Enum):
    """Into how many micro-batches a pipeline cuts the batch that `mbs` states."""

    NOT = auto()
    STAGES = auto()
    """As many as there are stages: torchtitan's default."""
    TWO = auto()
    """Two, as Galvatron's profiler does."""


@dataclass(frozen=True, slots=True)
class Source:
    """How to read the rows of one source."""

    match: str
    backend: str
    figure: Figure
    allocator: str = "default"
    fused_loss: bool = False
    open_recompute: bool = False
    """Whether an empty or doubtful recompute column means that the row's authors chose what fitted."""
    open_micro_batch: bool = False
    """Whether an empty micro-batch column means the same."""
    micro_batch: int | None = None
    """The framework's default."""
    recompute: str = ""
    """The framework's default."""
    split: Split = Split.NOT


SOURCES = (
    Source("llama3_h100_202412", "torchtitan-2024", Figure.RESERVED, allocator="expandable", split=Split.STAGES),
    Source("pytorch/torchtitan#", "torchtitan-2024", Figure.RESERVED, split=Split.STAGES),
    Source("pytorch/torchtitan", "torchtitan", Figure.RESERVED, allocator="expandable", split=Split.STAGES),
    Source("calculon", "megatron-2022", Figure.FORMULA, allocator="expandable"),
    Source("slime", "megatron-rl", Figure.ALLOCATED),
    Source("NeMo/RL", "megatron-rl", Figure.ALLOCATED),
    Source("Megatron-LM:tests", "megatron", Figure.LAST_STAGE),
    Source("Megatron-LM#", "megatron", Figure.ALLOCATED),
    Source("Megatron-LM", "megatron", Figure.ALLOCATED, "expandable", open_recompute=True, open_micro_batch=True),
    Source(
        "Megatron-Bridge:docs", "megatron-bridge", Figure.LAST_STAGE, "expandable", fused_loss=True, open_recompute=True
    ),
    Source("Megatron-Bridge", "megatron-bridge", Figure.LAST_STAGE, fused_loss=True),
    Source("llm-foundry", "fsdp1", Figure.RESERVED, fused_loss=True),
    Source("VIA-Research/vTrain", "megatron-2022", Figure.ALLOCATED, open_recompute=True),
    Source("Galvatron", "galvatron", Figure.ALLOCATED, split=Split.TWO),
    Source("DeepSpeed", "deepspeed", Figure.ALLOCATED),
    Source("llama-cookbook", "fsdp1", Figure.RESERVED, micro_batch=4, recompute="full"),
)
OTHER = Source("", "megatron", Figure.ALLOCATED, "expandable", open_recompute=True, open_micro_batch=True)
"""A paper or a table: what it leaves out, its authors chose so that it ran."""
REPORT = Source("", "megatron", Figure.ALLOCATED)
"""Somebody's report in a tracker, named by its number."""


def source_of(row: Row) -> Source:
    """The first source whose words stand in the row's, or what is usual of its kind."""
    text = row.text("source")
    return next((source for source in SOURCES if source.match in text), REPORT if "#" in text else OTHER)
