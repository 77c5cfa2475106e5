"""The footprint of one device of each stage: the peak of every phase of a step, by component, with its calculation.

Pure. Phases are initialisation, the first step's forward, backward and update, and the second step: optimizer states
come into being with the first update, so that only the second step shows the whole need.
"""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText, Text
from kuangchao_contracts.plan import Bytes, StageMemory
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.footprint import buffers
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage, stages
from kuangchao_operator.layers.strategy.footprint.states import StateMemory, on_rank, state_memory


class Phase(Contract):
    """One phase's peak."""

    name: ShortText
    allocated_bytes: Bytes


class StageFootprint(Contract):
    """One device of a stage. `device_bytes` counts what is outside the allocator too."""

    stage: Annotated[int, Field(ge=0)]
    parameters_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes
    activations_bytes: Bytes
    other_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    device_bytes: Bytes
    phases: tuple[Phase, ...]
    arithmetic: tuple[Text, ...]

    def memory(self) -> StageMemory:
        """The form that plans carry."""
        return StageMemory(
            stage=self.stage,
            parameters_bytes=self.parameters_bytes,
            gradients_bytes=self.gradients_bytes,
            optimizer_bytes=self.optimizer_bytes,
            activations_bytes=self.activations_bytes,
            other_bytes=self.other_bytes,
            total_bytes=self.allocated_bytes,
            reserved_bytes=self.device_bytes,
            arithmetic=self.arithmetic,
        )


def footprint(setting: Setting, calibration: Calibration) -> tuple[StageFootprint, ...]:
    """Every stage of a setting."""
    backend = calibration.backends[setting.backend]
    return tuple(_stage(stage, setting, calibration, backend) for stage in stages(setting, backend))


def _stage(stage: Stage, setting: Setting, calibration: Calibration, backend: Backend) -> StageFootprint:
    states = state_memory(stage.held, stage.trained, setting, calibration)
    parts = _parts(stage, states, setting, backend)
    held = states.parameters + states.gradients + states.optimizer
    always = states.casts + parts["buckets"] + parts["workspace"]
    forward = parts["output layer"] + parts["communication"] + parts["loss"]
    backward = parts["whole parameters"] + parts["whole gradients"] + parts["communication"] + stage.transient
    if setting.micro_batches > 1 and backend.accumulated_bytes:
        forward += parts["whole gradients"]
    passing = max(forward, backward)
    activations = stage.activations
    first = held - states.optimizer + states.first_step + always
    phases = (
        Phase(name="init", allocated_bytes=first),
        Phase(name="forward", allocated_bytes=first + activations + forward),
        Phase(name="backward", allocated_bytes=first + activations + backward),
        Phase(name="optimizer step", allocated_bytes=held + always + parts["optimizer step"]),
        Phase(name="second step", allocated_bytes=held + always + activations + passing),
    )
    peak = max(phase.allocated_bytes for phase in phases)
    # at an update's peak there are no activations: then all beside the states is temporaries
    shown = activations if peak == phases[-1].allocated_bytes else 0
    reserved = -(-peak * _allocator(setting, backend) // 1000)
    lines = _arithmetic(stage, states, parts, setting, backend)
    return StageFootprint(
        stage=stage.number,
        parameters_bytes=states.parameters,
        gradients_bytes=states.gradients,
        optimizer_bytes=states.optimizer,
        activations_bytes=shown,
        other_bytes=peak - held - shown,
        allocated_bytes=peak,
        reserved_bytes=reserved,
        device_bytes=reserved + backend.runtime_bytes,
        phases=phases,
        arithmetic=(
            *lines,
            f"peak: {human_bytes(peak)}; reserved by the allocator: {_allocator(setting, backend) / 1000}"
            f" times that = {human_bytes(reserved)}; with {human_bytes(backend.runtime_bytes)} outside it"
            f" {human_bytes(reserved + backend.runtime_bytes)}",
        ),
    )


def _parts(stage: Stage, states: StateMemory, setting: Setting, backend: Backend) -> dict[str, int]:
    """Everything beside states and activations, by name."""
    updated = states.gradients // max(1, backend.states[setting.precision].gradient)
    return {
        "loss": buffers.loss_bytes(stage, setting, backend),
        "output layer": buffers.gathered_bytes(stage, setting, backend, at_loss=True),
        "whole parameters": buffers.gathered_bytes(stage, setting, backend, at_loss=False),
        "whole gradients": buffers.reduced_bytes(stage, setting, backend),
        "communication": buffers.communication_bytes(setting, backend),
        "buckets": buffers.bucket_bytes(states.gradients, setting, backend),
        "workspace": backend.workspace_bytes,
        "optimizer step": updated * backend.step_bytes,
    }


def _allocator(setting: Setting, backend: Backend) -> int:
    """Permille of what is in use; interleaved schedules may have a figure of their own."""
    kinds = backend.reserved_permille
    if setting.layout.virtual > 1 and f"{setting.allocator}-interleaved" in kinds:
        return kinds[f"{setting.allocator}-interleaved"]
    return kinds[setting.allocator]


def _arithmetic(
    stage: Stage, states: StateMemory, parts: dict[str, int], setting: Setting, backend: Backend
) -> tuple[str, ...]:
    held, trained = on_rank(stage.held, setting), on_rank(stage.trained, setting)
    cost = backend.states[setting.precision]
    over = f" over {setting.layout.dense_shards} ranks" if setting.layout.dense_shards > 1 else ""
    beside = " + ".join(f"{human_bytes(size)} {name}" for name, size in parts.items() if size)
    return (
        f"parameters: {held.total:,} x {cost.parameter} B ({setting.precision.value}) ="
        f" {human_bytes(states.parameters)} (sharding {setting.sharding.value}{over})",
        f"gradients: {trained.total:,} x {cost.gradient} B = {human_bytes(states.gradients)}",
        f"optimizer: {setting.optimizer.value}, main copies {human_bytes(states.first_step)} + states"
        f" {human_bytes(states.optimizer - states.first_step)} = {human_bytes(states.optimizer)}",
        f"activations: {stage.layers_in_flight} layers x micro-batches in flight = {human_bytes(stage.activations)};"
        f" one layer's backward pass {human_bytes(stage.transient)}",
        f"beside them: {beside}",
    )
