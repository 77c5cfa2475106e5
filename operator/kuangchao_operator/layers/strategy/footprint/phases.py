"""The footprint of one device of each stage as people and plans read it: components and their calculation. Pure."""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText, Text
from kuangchao_contracts.plan import Bytes, Sharding, StageMemory
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, allocator_permille, peaks
from kuangchao_operator.layers.strategy.footprint.setting import Offload, Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage
from kuangchao_operator.layers.strategy.footprint.states import (
    SHARDS_GRADIENTS,
    Rank,
    gradient_cost,
    on_rank,
    parameter_cost,
    state_memory,
)


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
    return tuple(explained(peak, setting, calibration) for peak in peaks(setting, calibration))


def explained(peak: Peak, setting: Setting, calibration: Calibration) -> StageFootprint:
    """One stage with its calculation."""
    named = zip(peak.phases._fields, peak.phases, strict=True)
    lines = state_lines(peak.stage.held, peak.stage.trained, setting, calibration)
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
        arithmetic=(*_bound(peak.stage, setting), *lines, *_rest(peak, setting, calibration.backends[setting.backend])),
    )


def _bound(stage: Stage, setting: Setting) -> tuple[str, ...]:
    """That more is counted than will be there, where nothing says how a model is divided."""
    sizes = {"tensor": setting.layout.tensor, "pipeline": setting.layout.pipeline}
    named = " and ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
    if not named or not stage.whole_in_flight:
        return ()
    return (f"upper bound: nothing says how this model is divided by {named}, so each rank is counted with all of it",)


def _optimizer_cost(setting: Setting, calibration: Calibration) -> str:
    """Bytes of the optimizer for each parameter: "8 B (adam)", "(4 B main copy + 8 B (adam))"."""
    cost = calibration.backends[setting.backend].states[setting.precision]
    whole, part = divmod(calibration.optimizer_bytes[setting.optimizer] * cost.state_permille, 1000)
    states = f"{whole}{f'.{part:03}'.rstrip('0') if part else ''} B ({setting.optimizer.value})"
    return f"({cost.main} B main copy + {states})" if cost.main else states


def state_lines(held: Share, trained: Share, setting: Setting, calibration: Calibration) -> tuple[str, ...]:
    """How the states of a rank came about, one line for each kind and one for their sum."""
    states, whole, train = state_memory(held, trained, setting, calibration), on_rank(held, setting), Rank(0, 0)
    if setting.offload is Offload.NONE:
        train = on_rank(trained, setting)
    cost, kind = calibration.backends[setting.backend].states[setting.precision], setting.sharding
    optimizer = _optimizer_cost(setting, calibration)
    return (
        f"parameters: {_over(whole, setting, shard=kind is Sharding.FULL)} x {parameter_cost(cost, setting)} B"
        f" ({setting.precision.value}) = {_bytes(states.parameters)}",
        f"gradients: {_over(train, setting, shard=kind in SHARDS_GRADIENTS)} x {gradient_cost(cost, setting)} B ="
        f" {_bytes(states.gradients)}",
        f"optimizer: {_over(train, setting, shard=kind is not Sharding.NONE)} x {optimizer} ="
        f" {_bytes(states.optimizer)}",
        f"states: {_gigabytes(states.parameters)} + {_gigabytes(states.gradients)} + {_gigabytes(states.optimizer)} ="
        f" {_gigabytes(states.parameters + states.gradients + states.optimizer)} GB",
    )


def _over(rank: Rank, setting: Setting, *, shard: bool) -> str:
    """Parameters on a rank and the ranks that share them: "7,000,000,000 / 8 ranks"."""
    layout = setting.layout
    if not shard or (layout.dense_shards == 1 and layout.expert_shards == 1):
        return f"{rank.total:,}"
    if rank.experts == 0:
        return f"{rank.dense:,} / {layout.dense_shards} ranks"
    return (
        f"({rank.dense:,} / {layout.dense_shards} ranks + {rank.experts:,} of experts / {layout.expert_shards} ranks)"
    )


def _bytes(size: int) -> str:
    return f"{size:,} B ({human_bytes(size)})"


def _gigabytes(size: int) -> str:
    """Decimal, as papers and vendors count model states, with two places."""
    hundredths = (size + 5_000_000) // 10_000_000
    return f"{hundredths // 100}.{hundredths % 100:02}"


def _rest(peak: Peak, setting: Setting, backend: Backend) -> tuple[str, ...]:
    named = [("copies in the compute format", peak.states.casts), *zip(peak.parts._fields, peak.parts, strict=True)]
    beside = ", ".join(f"{human_bytes(size)} {name.replace('_', ' ')}" for name, size in named if size)
    return (
        _activations(peak.stage, setting),
        f"beside them, each in its phase: {beside}",
        f"peak: {human_bytes(peak.allocated_bytes)}; reserved by the allocator:"
        f" {allocator_permille(setting, backend) / 1000} times that = {human_bytes(peak.reserved_bytes)}; with"
        f" {human_bytes(backend.runtime_bytes)} outside it {human_bytes(peak.device_bytes)}",
    )


def _activations(stage: Stage, setting: Setting) -> str:
    if stage.layers_in_flight == 0:
        flying = max(1, stage.whole_in_flight)
        each, times = stage.activations // setting.micro_batch // flying, f"{flying} micro-batches in flight x "
        return (
            f"activations: {times if flying > 1 else ''}{setting.micro_batch} x {each:,} B (for each sample) ="
            f" {human_bytes(stage.activations)}"
        )
    return (
        f"activations: {stage.layers_in_flight} layers x micro-batches in flight = {human_bytes(stage.activations)};"
        f" one layer's backward pass {human_bytes(stage.transient)}"
    )
