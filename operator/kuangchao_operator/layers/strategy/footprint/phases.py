"""The footprint of one device of each stage as people and plans read it: components and their calculation. Pure."""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText, Text
from kuangchao_contracts.plan import Bytes, StageMemory
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, allocator_permille, peaks
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.states import on_rank


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
    return tuple(_explained(peak, setting, backend) for peak in peaks(setting, calibration))


def _explained(peak: Peak, setting: Setting, backend: Backend) -> StageFootprint:
    named = zip(peak.phases._fields, peak.phases, strict=True)
    return StageFootprint(
        stage=peak.number,
        parameters_bytes=peak.states.parameters,
        gradients_bytes=peak.states.gradients,
        optimizer_bytes=peak.states.optimizer,
        activations_bytes=peak.activations_bytes,
        other_bytes=peak.other_bytes,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        device_bytes=peak.device_bytes,
        phases=tuple(Phase(name=name.replace("_", " "), allocated_bytes=size) for name, size in named),
        arithmetic=(*_states(peak, setting, backend), *_rest(peak, setting, backend)),
    )


def _states(peak: Peak, setting: Setting, backend: Backend) -> tuple[str, ...]:
    held, trained = on_rank(peak.stage.held, setting), on_rank(peak.stage.trained, setting)
    cost, states = backend.states[setting.precision], peak.states
    over = f" over {setting.layout.dense_shards} ranks" if setting.layout.dense_shards > 1 else ""
    return (
        f"parameters: {held.total:,} x {cost.parameter} B ({setting.precision.value}) ="
        f" {human_bytes(states.parameters)} (sharding {setting.sharding.value}{over})",
        f"gradients: {trained.total:,} x {cost.gradient} B = {human_bytes(states.gradients)}",
        f"optimizer: {setting.optimizer.value}, main copies {human_bytes(states.first_step)} + states"
        f" {human_bytes(states.optimizer - states.first_step)} = {human_bytes(states.optimizer)}",
    )


def _rest(peak: Peak, setting: Setting, backend: Backend) -> tuple[str, ...]:
    named = [("copies in the compute format", peak.states.casts), *zip(peak.parts._fields, peak.parts, strict=True)]
    beside = ", ".join(f"{human_bytes(size)} {name.replace('_', ' ')}" for name, size in named if size)
    return (
        f"activations: {peak.stage.layers_in_flight} layers x micro-batches in flight ="
        f" {human_bytes(peak.stage.activations)}; one layer's backward pass {human_bytes(peak.stage.transient)}",
        f"beside them, each in its phase: {beside}",
        f"peak: {human_bytes(peak.allocated_bytes)}; reserved by the allocator:"
        f" {allocator_permille(setting, backend) / 1000} times that = {human_bytes(peak.reserved_bytes)}; with"
        f" {human_bytes(backend.runtime_bytes)} outside it {human_bytes(peak.device_bytes)}",
    )
