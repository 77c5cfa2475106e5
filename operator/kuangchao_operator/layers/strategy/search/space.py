"""What a search may choose: sizes of the job, values that the user pinned, and axes that are open. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kuangchao_contracts.base import MOST_COUNT
from kuangchao_contracts.plan import (
    DeviceShape,
    MeasuredModel,
    Parallelism,
    ParallelismMode,
    PlanRequest,
    TrainingSpec,
    TransformerModel,
)
from kuangchao_operator.layers.strategy.footprint.budget import spared_bytes
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.setting import SHAPELESS
from kuangchao_operator.layers.strategy.placement import filled_island
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, RUNNABLE, given, limits
from kuangchao_operator.layers.strategy.staging import fewest_chunks

FRAMEWORK = {"cpu": "kuangchao-cpu", "gpu": "kuangchao"}
"""Whose figures of the calibration hold for which kind of device."""


class Space(NamedTuple):
    """Everything that a search depends on, in the form in which it is asked for often."""

    world: int
    per_pod: int
    per_node: int
    island: int
    """Ranks among which tensor parallelism may stay: those that share fast links."""
    global_batch: int
    training: TrainingSpec
    model: TransformerModel
    measured: MeasuredModel | None
    known: bool
    """Whether there is a model at all."""
    pins: dict[str, Any]
    """By name of a member of `parallelism`; what is not here is open."""
    given: frozenset[str]
    """Of the pins those that the user wrote; others are closed, or what mode Manual takes."""
    limits: Mapping[str, tuple[Any, ...]]
    """Values to which an open axis is kept."""
    hypothetical: bool
    """Whether settings count that the worker does not carry out."""
    backend: str
    budget: int | None
    """Bytes that a rank may count on; None: not known."""
    managed: bool

    @property
    def shaped(self) -> bool:
        """Whether the model has layers that can be cut, and so a time that can be computed."""
        return self.known and self.measured is None

    @property
    def pieces(self) -> int:
        """Most runs of layers that a pipeline can be cut into: those that a pinned list names, among which both ends
        may have none, or else one for each layer; any number where no layers are known."""
        return len(self.pins.get("stageLayers", ())) or (self.model.layers if self.shaped else MOST_COUNT)

    def options(self, name: str, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """The pinned value of an axis, or else what was found for it and may be used."""
        if name in self.pins:
            return (self.pins[name],)
        return tuple(value for value in found if value in self.limits.get(name, found))


def space_of(
    request: PlanRequest, shape: DeviceShape, calibration: Calibration, opened: frozenset[str] = frozenset(RUNNABLE)
) -> Space:
    """The space of a request on one class of devices, over the axes that are open."""
    model, backend = request.model, FRAMEWORK[shape.kind]
    shaped = isinstance(model, TransformerModel)
    return Space(
        world=request.devices,
        per_pod=request.per_pod,
        per_node=shape.per_node,
        island=filled_island(shape, request.per_pod),
        global_batch=request.training.global_batch,
        training=request.training,
        model=model if isinstance(model, TransformerModel) else SHAPELESS,
        measured=model if isinstance(model, MeasuredModel) else None,
        known=model is not None,
        pins=_pins(request, opened, shaped=shaped),
        given=frozenset(given(request.parallelism)),
        limits=limits(request),
        hypothetical=request.what_if,
        backend=backend,
        budget=spared_bytes(shape.memory_bytes, backend, calibration) if shape.memory_bytes else None,
        managed=request.managed,
    )


def pinned(parallelism: Parallelism) -> dict[str, Any]:
    """What the user pinned, by wire name. Manual: all that is not given is neutral."""
    if parallelism.mode is ParallelismMode.MANUAL:
        return {**NEUTRAL, "data": 1, "microBatch": 1, **given(parallelism)}
    return given(parallelism)


def _pins(request: PlanRequest, opened: frozenset[str], *, shaped: bool) -> dict[str, Any]:
    closed = {name: value for name, value in NEUTRAL.items() if name not in opened}
    if not shaped:
        # where no layers are known the planner divides what is pinned and nothing else; states can be sharded
        closed |= {name: value for name, value in NEUTRAL.items() if name != "sharding"}
        if (request.parallelism.pipeline or 1) > 1:
            closed["virtualStages"] = fewest_chunks(request.parallelism.schedule)
    return {**closed, **pinned(request.parallelism)}
