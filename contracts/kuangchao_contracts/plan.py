"""Inputs and outputs of the strategy layer: pure data, no clock, no run-time state."""

import hashlib
from enum import StrEnum
from math import lcm
from typing import Annotated, Final, Literal

from pydantic import Field

from kuangchao_contracts import planwords
from kuangchao_contracts.base import INT64, MOST_COUNT, Contract, ShortText, Text, canonical_json
from kuangchao_contracts.fabric import Fabric
from kuangchao_contracts.parallel import (
    Locality,
    Objective,
    Overlay,
    OverlayGroups,
    PlacementRule,
    Schedule,
    StepEstimate,
)
from kuangchao_contracts.rules import TaskRule

Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Bytes = Annotated[int, Field(ge=0)]
StageLayers = Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_COUNT)], ...], Field(max_length=1024)]


def _empty(value: object) -> bool:
    return not value


def _is_one(value: object) -> bool:
    return value == 1


def _is_plain_schedule(value: object) -> bool:
    return value is Schedule.ONE_F_ONE_B


def _is_time(value: object) -> bool:
    return value is Objective.TIME


class Precision(StrEnum):
    """Number format of parameters and activations in the forward pass.

    What stands beside it in fp32 is the framework's to say: "bf16" and "fp16" have fp32 main parameters, "bf16-pure"
    and "fp16-pure" have none.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    BF16_PURE = "bf16-pure"
    FP16_PURE = "fp16-pure"
    FP8 = "fp8"


class Optimizer(StrEnum):
    """Optimizer kinds that the memory estimate knows."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    ADAMW_BF16 = "adamw-bf16"
    ADAMW_8BIT = "adamw-8bit"
    MUON = "muon"


class Recompute(StrEnum):
    """Activation recomputation."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Sharding(StrEnum):
    """What is sharded over the data-parallel ranks (ZeRO stages in words)."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    FULL = "full"


class MeasuredModel(Contract):
    """A model known by its sizes only, as measured from any nn.Module."""

    kind: Literal["measured"] = "measured"
    name: ShortText = "model"
    parameters: Annotated[int, Field(ge=1), INT64]
    trainable_parameters: Annotated[int, Field(ge=0), INT64] | None = None
    buffer_bytes: Annotated[int, Field(ge=0), INT64] = 0
    activation_bytes_per_sample: Annotated[int, Field(ge=0), INT64] = 0


class Norm(StrEnum):
    """Normalisation: RMS has a weight, layer norm a weight and a bias."""

    RMS = "rms"
    LAYER = "layer"


class Bias(StrEnum):
    """Which linear layers have biases: none, those of query, key and value, or all but the output layer."""

    NONE = "none"
    QKV = "qkv"
    ALL = "all"


class Experts(Contract):
    """Mixture of experts in place of the ffn of a layer; the first `dense_layers` layers keep the plain ffn."""

    count: Count
    per_token: Count
    ffn: Count
    shared_ffn: Annotated[int, Field(ge=0, le=MOST_COUNT)] = 0
    dense_layers: Annotated[int, Field(ge=0, le=MOST_COUNT)] = 0
    every: Count = 1


class LatentAttention(Contract):
    """Multi-head latent attention: queries (optionally), keys and values come from low-rank projections."""

    query_rank: Count | None = None
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    value_dim: Count


class Adapter(Contract):
    """Low-rank adapters (LoRA): everything else is frozen."""

    rank: Count
    attention_only: bool = False


class TransformerModel(Contract):
    """A decoder. Symbols as in the literature: L layers, h hidden, a heads, k kv heads, f ffn, V vocabulary."""

    kind: Literal["transformer"] = "transformer"
    name: ShortText = "transformer"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count
    vocab: Count
    gated_ffn: bool = True
    tied_embeddings: bool = False
    norm: Norm = Norm.RMS
    bias: Bias = Bias.NONE
    learned_positions: Annotated[int, Field(ge=0, le=16_777_216)] = 0
    max_sequence: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    adapter: Adapter | None = None
    frozen_layers: Annotated[int, Field(ge=0, le=MOST_COUNT)] = 0


ModelDescriptor = Annotated[MeasuredModel | TransformerModel, Field(discriminator="kind")]


class TrainingSpec(Contract):
    """What the user wants to train; the plan may never change any of it."""

    global_batch: Count = 32
    sequence_length: Count | None = None
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.ADAMW
    steps: Annotated[int, Field(ge=1, le=2**40)] = 100
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


_OLDER_PRECISION = {
    Precision.BF16_PURE: Precision.BF16,
    Precision.FP16_PURE: Precision.FP16,
    Precision.FP8: Precision.BF16,
}
_OLDER_OPTIMIZER = {
    Optimizer.ADAMW_BF16: Optimizer.ADAMW,
    Optimizer.ADAMW_8BIT: Optimizer.ADAMW,
    Optimizer.MUON: Optimizer.MOMENTUM,
}


def known_to_older_workers(training: TrainingSpec) -> TrainingSpec:
    """As workers of 0.1.0 can read it (proposal 0003).

    Nothing is lost: a task brings its own optimizer, and a precision that workers cannot run has no plan.
    """
    return training.replace(
        precision=_OLDER_PRECISION.get(training.precision, training.precision),
        optimizer=_OLDER_OPTIMIZER.get(training.optimizer, training.optimizer),
    )


class ParallelismMode(StrEnum):
    """Auto: the planner chooses what is not pinned. Manual: everything not given is 1."""

    AUTO = "Auto"
    MANUAL = "Manual"


class Parallelism(Contract):
    """Pinned sizes; a field left out is the planner's to choose (Auto) or 1 (Manual).

    `task_rules` pins nothing: it says for which ways to split a model the task has rules, so that the planner may use
    them unasked. The planner never sees the task; a worker refuses a plan that the task has no rules for.
    """

    mode: ParallelismMode = ParallelismMode.AUTO
    tensor: Count | None = None
    pipeline: Count | None = None
    data: Count | None = None
    context: Count | None = None
    expert: Count | None = None
    micro_batch: Count | None = None
    virtual_stages: Count | None = None
    sequence: bool | None = None
    recompute: Recompute | None = None
    sharding: Sharding | None = None
    schedule: Schedule | None = None
    stage_layers: StageLayers | None = None
    """Layers of each virtual stage in the order in which a micro-batch visits them."""
    objective: Objective | None = None
    task_rules: Annotated[
        tuple[TaskRule, ...],
        Field(max_length=len(TaskRule), exclude_if=_empty, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = ()


class DeviceShape(Contract):
    """A class of equal devices on nodes of a pool: the pool's shape, never what is free just now."""

    kind: Literal["cpu", "gpu"]
    model: ShortText = ""
    memory_bytes: Bytes
    per_node: Count
    nodes: Count
    fabric: Fabric | None = None


class PlanRequest(Contract):
    """All that a plan depends on. Members of later releases are left out while they are empty: digests stay."""

    devices: Count
    per_pod: Count
    shapes: Annotated[tuple[DeviceShape, ...], Field(max_length=64)]
    model: ModelDescriptor | None = None
    training: TrainingSpec
    parallelism: Parallelism = Parallelism()
    managed: bool = True
    measured_peak_bytes: Bytes | None = None
    what_if: Annotated[bool, Field(exclude_if=_empty)] = False
    """Whether axes may be used that the worker of this release does not run."""
    calibration_digest: Annotated[str, Field(max_length=64, pattern="^([0-9a-f]{64})?$", exclude_if=_empty)] = ""
    """Content hash of the calibration; "" for the one of this release."""
    plugged: Annotated[bool, Field(exclude_if=_empty)] = False
    """Whether something stands between algorithm and state: it takes gradients whole."""


class Axis(StrEnum):
    """Axes of the device mesh, innermost first."""

    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"
    DATA = "data"
    PIPELINE = "pipeline"


class AxisGroups(Contract):
    """The groups of one axis as a rule: rank r has coordinate (r // stride) % size on it."""

    axis: Axis
    size: Count
    stride: Count


class StageMemory(Contract):
    """Peak bytes on one device of a pipeline stage, by component; `arithmetic` shows how each came about.

    With `last_stage` it is the fullest of the stages from `stage` to that one.
    """

    stage: Annotated[int, Field(ge=0)]
    last_stage: Annotated[int, Field(ge=0)] | None = None
    parameters_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes
    activations_bytes: Bytes
    other_bytes: Bytes
    total_bytes: Bytes
    reserved_bytes: Bytes
    arithmetic: Annotated[tuple[Text, ...], Field(max_length=16)] = ()


class RejectedAxis(Contract):
    """Why an axis was not used, or not used more."""

    axis: ShortText
    reason: Text


class Alternative(Contract):
    """A plan that was considered and lost."""

    summary: ShortText
    reason: Text


_EXPLAINING: Final = frozenset({"objective", "step"})
"""Members of later releases that say why a plan is as it is: they do not count for its hash."""
_BEYOND_DATA: Final = frozenset({"schedule", "stage_layers", "expert_tensor", "shard_ranks", "overlays", "placement"})
"""Members of later releases that divide nothing where only data is divided: they do not count for its hash there."""


class ParallelPlan(Contract):
    """How one job is split over its ranks. Rules, not a list per rank.

    `groups` is the mesh: its sizes multiply to the world. `overlays` group the same ranks once more. Members of later
    releases are left out while they are empty, and do not count for the hash where 0.1.0 does the same without them.
    """

    world_size: Count
    per_pod: Count
    pods: Count
    tensor: Count = 1
    pipeline: Count = 1
    data: Count = 1
    context: Count = 1
    expert: Count = 1
    sequence: bool = False
    virtual_stages: Count = 1
    micro_batch: Count
    accumulation_steps: Count
    global_batch: Count
    recompute: Recompute = Recompute.NONE
    sharding: Sharding = Sharding.NONE
    managed: bool = True
    groups: Annotated[tuple[AxisGroups, ...], Field(max_length=8)]
    memory_checked: bool
    memory: Annotated[tuple[StageMemory, ...], Field(max_length=128)] = ()
    device_memory_bytes: Bytes
    step_microseconds: Annotated[int, Field(ge=0)] | None = None
    bubble_ppm: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=8)] = ()
    rejected: Annotated[tuple[RejectedAxis, ...], Field(max_length=16)] = ()
    request_digest: Annotated[str, Field(max_length=64, pattern="^[0-9a-f]{64}$")]
    schedule: Annotated[Schedule, Field(exclude_if=_is_plain_schedule)] = Schedule.ONE_F_ONE_B
    stage_layers: Annotated[StageLayers, Field(exclude_if=_empty)] = ()
    """Layers of each virtual stage in order; empty: as even as can be."""
    expert_tensor: Annotated[Count, Field(exclude_if=_is_one)] = 1
    shard_ranks: Annotated[int, Field(ge=0, le=MOST_COUNT, exclude_if=_empty)] = 0
    """Ranks over which a sharded state is divided; 0: all of data x context."""
    objective: Annotated[Objective, Field(exclude_if=_is_time)] = Objective.TIME
    step: StepEstimate | None = None
    overlays: Annotated[tuple[OverlayGroups, ...], Field(max_length=8, exclude_if=_empty)] = ()
    placement: Annotated[tuple[PlacementRule, ...], Field(max_length=8, exclude_if=_empty)] = ()

    @property
    def hash(self) -> str:
        """SHA-256 of what the ranks do, in hex: the plan's identity everywhere.

        A worker of 0.1.0 reads a data-parallel plan without the members that it does not know, and comes to the same.
        """
        left_out = _EXPLAINING | _BEYOND_DATA if self._divides_data_only() else _EXPLAINING
        wire = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(left_out))
        return hashlib.sha256(canonical_json(wire)).hexdigest()

    def _divides_data_only(self) -> bool:
        divided = self.tensor * self.pipeline * self.context * self.expert * self.expert_tensor > 1
        return not divided and self.shard_ranks == 0 and not any(rule.required for rule in self.placement)

    @property
    def pods_together(self) -> int:
        """Pods that must share a node, in runs that begin at a multiple, as far as `placement` requires it."""
        spans = [rule.size * rule.stride for rule in self.placement if rule.required and rule.within != Locality.RAIL]
        return lcm(self.per_pod, *spans) // self.per_pod

    def summary(self) -> str:
        """Short form for a column: dp2, tp2pp2dp4."""
        return planwords.axes(
            tensor=self.tensor, pipeline=self.pipeline, context=self.context, expert=self.expert, data=self.data
        )

    def words(self) -> str:
        """A few words that differ for plans that do different things."""
        return planwords.plan_words(
            self.summary(),
            self.micro_batch,
            pipeline=self.pipeline,
            schedule=self.schedule,
            chunks=self.virtual_stages,
            recompute=self.recompute,
            sharding=self.sharding,
            shard_ranks=self.shard_ranks,
            stage_layers=self.stage_layers,
            sequence=self.sequence,
            expert_tensor=self.expert_tensor,
        )

    def coordinate(self, rank: int, axis: Axis | Overlay) -> int:
        """Coordinate of a rank on an axis; 0 for an axis that the plan does not use."""
        groups: tuple[AxisGroups | OverlayGroups, ...] = (*self.groups, *self.overlays)
        for group in groups:
            if group.axis.value == axis.value:
                return (rank // group.stride) % group.size
        return 0


class Infeasible(Contract):
    """Why there is no plan, with the offending numbers."""

    reason: Literal["Infeasible", "ContradictoryPlan", "InvalidSpec"]
    message: Text
    field: ShortText | None = None
    value: ShortText | None = None
    nearest: ShortText | None = None
    memory: Annotated[tuple[StageMemory, ...], Field(max_length=128)] = ()
    rejected: Annotated[tuple[RejectedAxis, ...], Field(max_length=16)] = ()


class PlanOutcome(Contract):
    """Exactly one of plan and infeasible is set."""

    plan: ParallelPlan | None = None
    infeasible: Infeasible | None = None

    def audit_text(self) -> str:
        """The plan's identity, or why there is none."""
        if self.plan is not None:
            return f"{self.plan.summary()} plan {self.plan.hash}"
        return self.infeasible.reason if self.infeasible is not None else ""
