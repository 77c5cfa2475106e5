"""What no arithmetic gives: how a framework stores states, what its kernels keep, what its allocator takes. Pure.

The figures are data (`calibration.json`): one value for each framework, each with its source, never one for a single
model or run. `shipped.py` reads the file; everything else here takes a Calibration and reads nothing.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Annotated, Final

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract, ShortText, Text
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import Bytes, Optimizer, Precision, Recompute
from kuangchao_operator.layers.strategy.bounds import nearest
from kuangchao_operator.layers.strategy.footprint.setting import Loss

Small = Annotated[int, Field(ge=0, le=64)]
Permille = Annotated[int, Field(ge=0, le=10_000)]


class StateCost(Contract):
    """Bytes for each parameter: itself, its gradient, a main copy, and the optimizer's states by `state_permille`.

    `parameter_cast` is a copy in the compute format that lives as long as the parameter and is not sharded further.
    """

    parameter: Small
    gradient: Small
    main: Small = 0
    cast: Small = 0
    state_permille: Permille = 1000
    full_gradient: Small | None = None
    """The gradient's cost under full sharding, where the framework keeps it elsewhere."""


class Backend(Contract):
    """One framework."""

    source: Text
    states: dict[Precision, StateCost]
    element: dict[Precision, Small]
    linear_input: dict[Precision, Small]
    """Bytes of an element that is kept only as the input of a matrix product: 1 where fp8 copies are kept."""
    activation_permille: Permille = 1000
    """What modules keep, relative to fused kernels."""
    recompute_permille: dict[Recompute, Permille] = {}
    """The same for what is kept under selective recomputation, or of the input under full recomputation; where absent,
    `activation_permille` and the plain input."""
    logit_bytes: dict[ShortText, Small]
    """For each logit at the loss's peak, by how the loss is computed."""
    vocab_multiple: Annotated[int, Field(ge=1, le=1024)] = 1
    workspace_bytes: Bytes = 0
    """Inside the allocator: workspaces of libraries."""
    expert_workspace_bytes: Bytes = 0
    """The same for grouped products of experts, on stages that have them."""
    runtime_bytes: Bytes
    """Outside the allocator: context, kernels, communicator buffers."""
    gathered_layers: Small = 0
    """Layers whose parameters are whole at once in the backward pass under full sharding: the one at work and those
    fetched ahead."""
    gathered_at_loss: Small = 0
    """Layers that are still whole while the loss is computed, beside the output layer."""
    live_parameters: Bytes = 0
    """Parameters, not bytes, that the framework lets be whole at once before it shards the oldest again."""
    gathered_bytes: Small = 2
    reduced_layers: Small = 0
    """Layers whose gradients are whole at once while they are reduced."""
    reduced_bytes: Small = 0
    keeps_gathered_in_pipeline: bool = False
    """Whether a stage of a pipeline keeps its parameters whole between micro-batches under full sharding."""
    gathers_keys: bool = False
    """Whether each context rank keeps the keys and values of whole sequences; else those of its own tokens."""
    accumulated_bytes: Small = 0
    """For each parameter: whole gradients that stay while micro-batches accumulate under sharded gradients."""
    sequence_buffers: Small = 1
    """Whole hidden states that sequence parallelism gathers into."""
    bucket_bytes: Bytes = 0
    """Fixed buckets of the gradient reduction."""
    bucket_permille: Permille = 0
    """Buckets that hold the gradients once more, as those of several micro-batches, or of FSDP's replicas, do."""
    step_bytes: Small = 0
    """Temporaries of the optimizer step for each parameter that it updates on the rank."""
    snapshot_permille: Permille = 0
    """Parameters and optimizer states that are there once more while a checkpoint is written: where main memory is the
    device's own."""
    spare_permille: Permille = 0
    """Of a device's memory, what others beside the rank may take: where it is a share of main memory."""
    reserved_permille: dict[ShortText, Permille]
    """What the allocator takes for each byte in use, by kind of allocator."""


class FittedConstant(Contract):
    """One figure that was fitted to measured runs."""

    backend: ShortText
    name: ShortText
    before: Annotated[int, Field(ge=0)]
    after: Annotated[int, Field(ge=0)]


class Fit(Contract):
    """Where figures came from that are not those of the file that they replaced. No time stamp: equal runs, equal file.

    Errors are means over runs of |estimate - measured| / measured, in millionths; `held_out` is of fits that had not
    seen the run's group.
    """

    base_version: Annotated[int, Field(ge=1)]
    base_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    runs_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    runs: Annotated[int, Field(ge=1)]
    groups: Annotated[int, Field(ge=1)]
    constants: tuple[FittedConstant, ...]
    error_before_ppm: Annotated[int, Field(ge=0)]
    error_after_ppm: Annotated[int, Field(ge=0)]
    error_held_out_ppm: Annotated[int, Field(ge=0)]


class Calibration(Contract):
    """All frameworks, the sizes of optimizer states, and what may be used of a device."""

    version: Annotated[int, Field(ge=1)]
    fits: Annotated[tuple[Fit, ...], Field(max_length=64)] = ()
    """What changed the figures since the file that a release shipped, oldest first."""
    optimizer_bytes: dict[Optimizer, Small]
    visible_permille: Permille
    """What a process can see of a device's nominal memory."""
    backends: dict[ShortText, Backend]


PLANNED: Final = ("kuangchao", "kuangchao-cpu")
"""Frameworks that plans of jobs are made for: a calibration without one of them is of no use."""


def parse(raw: bytes, where: str) -> Calibration:
    """A calibration file that stands at `where`. Raises InvalidInputError naming the first thing wrong with it."""
    try:
        found = Calibration.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise InvalidInputError(where, field, f"is no calibration: {first['msg']}", nearest(first)) from None
    for field, fault in _faults(found):
        raise InvalidInputError(where, field, f"is no calibration: {fault}")
    return found


def _faults(calibration: Calibration) -> Iterator[tuple[str, str]]:
    """Places where a plan would look for a figure and find none, or one that it cannot compute with."""
    yield from _absent("optimizerBytes", Optimizer, calibration.optimizer_bytes)
    yield from _absent("backends", PLANNED, calibration.backends)
    for name, backend in calibration.backends.items():
        at = f"backends.{name}"
        yield from _absent(f"{at}.states", Precision, backend.states)
        yield from _absent(f"{at}.element", Precision, backend.element)
        yield from _absent(f"{at}.linearInput", Precision, backend.linear_input)
        yield from _absent(f"{at}.logitBytes", Loss, backend.logit_bytes)
        yield from _absent(f"{at}.reservedPermille", ("default",), backend.reserved_permille)
        for precision, size in backend.element.items():
            if size == 0:
                yield f"{at}.element.{precision}", "0 is no size; at least 1"
        if backend.spare_permille >= calibration.visible_permille:
            yield f"{at}.sparePermille", f"must be below visiblePermille {calibration.visible_permille}"


def _absent(field: str, wanted: Iterable[str], given: Container[str]) -> Iterator[tuple[str, str]]:
    return ((field, f"no figure for {name}") for name in wanted if name not in given)
