"""The peak of every phase of a step on one device of each stage, in numbers only: what a search looks at. Pure.

Phases are initialisation, the first step's forward, backward and update, and the second step: optimizer states come
into being with the first update, so that only the second step shows the whole need.
"""

from typing import NamedTuple

from kuangchao_operator.layers.strategy.footprint import buffers
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage, stages
from kuangchao_operator.layers.strategy.footprint.states import StateMemory, state_memory


class Parts(NamedTuple):
    """What is in use beside states and activations, each only in some phases."""

    loss: int
    output_layer: int
    whole_parameters: int
    whole_gradients: int
    communication: int
    buckets: int
    workspace: int
    optimizer_step: int
    snapshot: int
    buffers: int
    own_shard: int


class Phases(NamedTuple):
    """Bytes in use at the peak of each phase."""

    init: int
    forward: int
    backward: int
    optimizer_step: int
    second_step: int


class Peak(NamedTuple):
    """One device of a stage. `device_bytes` counts what is outside the allocator too."""

    stage: Stage
    states: StateMemory
    parts: Parts
    phases: Phases
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int

    @property
    def number(self) -> int:
        """The stage's."""
        return self.stage.number

    @property
    def activations_bytes(self) -> int:
        """Activations at the peak: none where the peak is an update."""
        return self.stage.activations if self.allocated_bytes == self.phases.second_step else 0

    @property
    def other_bytes(self) -> int:
        """All beside parameters, gradients, optimizer and activations."""
        held = self.states.parameters + self.states.gradients + self.states.optimizer
        return self.allocated_bytes - held - self.activations_bytes


def peaks(setting: Setting, calibration: Calibration) -> tuple[Peak, ...]:
    """Every stage of a setting."""
    return tuple(peak(stage, setting, calibration) for stage in stages(setting, calibration.backends[setting.backend]))


def fullest(found: tuple[Stage, ...], setting: Setting, calibration: Calibration) -> Peak:
    """Of these stages the one that needs most, the first of equals."""
    return max((peak(stage, setting, calibration) for stage in found), key=lambda one: (one.device_bytes, -one.number))


def peak(stage: Stage, setting: Setting, calibration: Calibration) -> Peak:
    """One stage."""
    backend = calibration.backends[setting.backend]
    states = state_memory(stage.held, stage.trained, setting, calibration)
    parts = _parts(stage, states, setting, backend)
    phases = _phases(stage, states, parts, accumulates=buffers.accumulates(setting, backend))
    return with_allocated(max(phases), Peak(stage, states, parts, phases, 0, 0, 0), setting, backend)


def with_allocated(allocated: int, known: Peak, setting: Setting, backend: Backend) -> Peak:
    """A peak with so much in use, and what the allocator and the device make of it."""
    reserved = -(-allocated * allocator_permille(setting, backend) // 1000)
    return known._replace(
        allocated_bytes=allocated, reserved_bytes=reserved, device_bytes=reserved + backend.runtime_bytes
    )


def allocator_kind(setting: Setting, backend: Backend) -> str:
    """The kind of allocator whose figure holds; pipelines, and interleaved ones among them, may have figures of their
    own: what a micro-batch keeps goes while others stay, and leaves holes."""
    own = {"interleaved": setting.layout.virtual > 1, "pipeline": setting.layout.pipeline > 1}
    kinds = (f"{setting.allocator}-{word}" for word, applies in own.items() if applies)
    return next((kind for kind in kinds if kind in backend.reserved_permille), setting.allocator)


def allocator_permille(setting: Setting, backend: Backend) -> int:
    """What the allocator takes of what is in use."""
    return backend.reserved_permille[allocator_kind(setting, backend)]


def _parts(stage: Stage, states: StateMemory, setting: Setting, backend: Backend) -> Parts:
    return Parts(
        loss=buffers.loss_bytes(stage, setting, backend),
        output_layer=buffers.gathered_bytes(stage, setting, backend, at_loss=True),
        whole_parameters=buffers.gathered_bytes(stage, setting, backend, at_loss=False),
        whole_gradients=buffers.reduced_bytes(stage, setting, backend),
        communication=buffers.communication_bytes(setting, backend),
        buckets=buffers.bucket_bytes(states.gradients, setting, backend),
        workspace=backend.workspace_bytes + (backend.expert_workspace_bytes if _grouped(stage, setting) else 0),
        optimizer_step=states.updated * backend.step_bytes,
        snapshot=(states.parameters + states.optimizer) * backend.snapshot_permille // 1000,
        buffers=stage.fixed,
        own_shard=buffers.shard_bytes(stage, setting, backend),
    )


def _grouped(stage: Stage, setting: Setting) -> bool:
    return setting.grouped_experts and stage.held.expert > 0


def _phases(stage: Stage, states: StateMemory, parts: Parts, *, accumulates: bool) -> Phases:
    always = states.parameters + states.gradients + states.casts + parts.buckets + parts.workspace + parts.buffers
    always += parts.own_shard
    # a snapshot for a checkpoint may be there whenever training goes on after an update
    before, after = always + states.first_step, always + states.optimizer + parts.snapshot
    forward = stage.activations + parts.output_layer + parts.communication + parts.loss
    if accumulates:
        # whole gradients of the micro-batches before this one
        forward += parts.whole_gradients
    backward = stage.activations + stage.transient + parts.whole_parameters + parts.whole_gradients
    backward += parts.communication
    return Phases(
        init=before,
        forward=before + forward,
        backward=before + backward,
        optimizer_step=after + parts.optimizer_step,
        second_step=after + max(forward, backward),
    )
