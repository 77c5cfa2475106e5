"""What a user pinned: as sizes for the laws of layouts, and a broken law in the words of the request. Pure."""

import re
from collections.abc import Iterator
from math import prod
from typing import Any, Final

from kuangchao_contracts.plan import Infeasible, Parallelism, ParallelismMode, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.legality import faults
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.runnable import NEUTRAL
from kuangchao_operator.layers.strategy.sizes import Broken, Contradiction, Sizes
from kuangchao_operator.layers.strategy.values import AXES

_PATHS: Final = {"devices": "devices.count", "globalBatch": "training.globalBatch"}
"""Where a request has a field that the laws of layouts call by its last name."""
_PINNED: Final = frozenset(field.alias for field in Parallelism.model_fields.values())
"""What a user can pin, by wire name."""
_BARE = re.compile(
    r"(?<!\.)\b(devices|globalBatch|tensor|pipeline|context|data|expert|virtualStages|sequence|stageLayers|microBatch"
    r"|recompute|sharding|schedule)(?==|: (?:\d|\[|true|false|none))"
)


def pinned_micro_batch(parallelism: Parallelism) -> int | None:
    """The micro-batch that the user asked for; Manual without one means 1."""
    if parallelism.micro_batch is None and parallelism.mode is ParallelismMode.MANUAL:
        return 1
    return parallelism.micro_batch


def pinned_sizes(request: PlanRequest, opened: frozenset[str]) -> Sizes:
    """Sizes as far as a request says them: what is pinned, and neutral ones in mode Manual or on a closed axis."""
    wish, model = request.parallelism, request.model
    names = ("tensor", "pipeline", "context", "data")
    given = {name: _size(request, opened, name, getattr(wish, name)) for name in names}
    rest, odd = divmod(request.devices, prod(size for size in given.values() if size is not None))
    open_ = [name for name, size in given.items() if size is None]
    if not odd and (rest == 1 or len(open_) == 1):
        # what is left is for the one axis that is open, or there is nothing left
        given |= dict.fromkeys(open_, rest)
    tensor, pipeline, context, data = (given[name] for name in names)
    micro = _size(request, opened, "microBatch", wish.micro_batch)
    batch = request.training.global_batch if request.managed else None
    whole = batch is not None and data and micro and batch % (data * micro) == 0
    return Sizes(
        model=model if isinstance(model, TransformerModel) else None,
        sequence_length=request.training.sequence_length,
        devices=request.devices,
        global_batch=batch,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=data,
        expert=_size(request, opened, "expert", wish.expert),
        virtual=_size(request, opened, "virtualStages", wish.virtual_stages),
        sequence=_size(request, opened, "sequence", wish.sequence),
        stage_layers=wish.stage_layers or (),
        micro_batch=micro,
        micro_batches=batch // (data * micro) if whole and batch and data and micro else None,
        schedule=wish.schedule,
        sharding=_size(request, opened, "sharding", wish.sharding),
    )


def _size(request: PlanRequest, opened: frozenset[str], name: str, given: Any) -> Any:
    """A pinned value, or the neutral one of an axis that is not for the planner to choose, or None."""
    if given is not None:
        return given
    if request.parallelism.mode is ParallelismMode.MANUAL or name not in opened:
        return NEUTRAL.get(name, 1)
    return None


def layout_faults(request: PlanRequest, opened: frozenset[str]) -> Iterator[Broken]:
    """Every law of layouts that pins break, in the words of a request. A pinned tensor size may leave its island: that
    is the user's word.
    """
    return (_named(found, request) for found in faults(pinned_sizes(request, opened)))


def _named(found: Broken, request: PlanRequest) -> Broken:
    """The same with whole paths; what follows from pins can be changed by these alone."""
    wire = request.parallelism.wire()
    pins = (axis for axis in AXES if axis in wire) if found.field not in wire else ()
    return found._replace(
        field=_path(found.field),
        why=_worded(found.why, found.field, found.value, request),
        instead=tuple(_path(name) for name in dict.fromkeys((*found.instead, *pins))),
    )


def as_infeasible(found: Contradiction, request: PlanRequest) -> Infeasible:
    """A broken law of layouts in the words of a request: fields by their whole path."""
    return refused(
        reason="Infeasible" if found.field == "globalBatch" else "ContradictoryPlan",
        field=_path(found.field),
        value=str(found.value),
        nearest=found.nearest,
        message=_worded(found.message, found.field, found.value, request),
    )


def _worded(message: str, name: str, value: object, request: PlanRequest) -> str:
    """A message about a field with whole paths, and with what mode Manual gave it."""
    message, field = _BARE.sub(lambda match: _path(match[1]), message), _path(name)
    manual = request.parallelism.mode is ParallelismMode.MANUAL and name in _PINNED
    if not manual or name in request.parallelism.wire():
        return message
    return message.replace(f"{field}={value}", f"{field}={value} (Manual: what is not given is 1)", 1)


def _path(name: str) -> str:
    """Of a pin, of another field of the request, or of the plan itself."""
    if name.startswith("plan."):
        return name
    return _PATHS.get(name, f"parallelism.{name}" if name in _PINNED else f"plan.{name}")
