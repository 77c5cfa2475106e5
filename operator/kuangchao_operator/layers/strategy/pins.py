"""What a user pinned: as sizes for the laws of layouts, and a broken law in the words of the request. Pure."""

import re
from typing import Any, Final

from kuangchao_contracts.plan import Infeasible, Parallelism, ParallelismMode, PlanRequest, TransformerModel
from kuangchao_operator.layers.strategy.runnable import NEUTRAL, open_axes
from kuangchao_operator.layers.strategy.sizes import Contradiction, Sizes

_PATHS: Final = {"devices": "devices.count", "globalBatch": "training.globalBatch"}
"""Where a request has a field that the laws of layouts call by its last name."""
_PINNED: Final = frozenset(field.alias for field in Parallelism.model_fields.values())
"""What a user can pin, by wire name."""
_BARE = re.compile(
    r"\b(devices|globalBatch|tensor|pipeline|context|data|expert|virtualStages|sequence|stageLayers|microBatch"
    r"|recompute|schedule)(?==|: (?:\d|\[|true|false|none))"
)


def pinned_micro_batch(parallelism: Parallelism) -> int | None:
    """The micro-batch that the user asked for; Manual without one means 1."""
    if parallelism.micro_batch is None and parallelism.mode is ParallelismMode.MANUAL:
        return 1
    return parallelism.micro_batch


def pinned_sizes(request: PlanRequest) -> Sizes:
    """Sizes as far as a request says them: what is pinned, and neutral ones in mode Manual or on a closed axis."""
    wish, model = request.parallelism, request.model
    tensor, pipeline = _size(request, "tensor", wish.tensor), _size(request, "pipeline", wish.pipeline)
    context, data = _size(request, "context", wish.context), _size(request, "data", wish.data)
    micro = _size(request, "microBatch", wish.micro_batch)
    if data is None and tensor and pipeline and context and request.devices % (tensor * pipeline * context) == 0:
        data = request.devices // (tensor * pipeline * context)
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
        expert=_size(request, "expert", wish.expert),
        virtual=_size(request, "virtualStages", wish.virtual_stages),
        sequence=_size(request, "sequence", wish.sequence),
        stage_layers=wish.stage_layers or (),
        micro_batch=micro,
        micro_batches=batch // (data * micro) if whole and batch and data and micro else None,
        schedule=wish.schedule,
        sharding=_size(request, "sharding", wish.sharding),
        recompute=wish.recompute,
    )


def _size(request: PlanRequest, name: str, given: Any) -> Any:
    """A pinned value, or the neutral one of an axis that is not for the planner to choose, or None."""
    if given is not None:
        return given
    if request.parallelism.mode is ParallelismMode.MANUAL or name not in open_axes(request):
        return NEUTRAL.get(name, 1)
    return None


def as_infeasible(found: Contradiction, request: PlanRequest) -> Infeasible:
    """A broken law of layouts in the words of a request: fields by their whole path."""
    field = _path(found.field)
    message = _BARE.sub(lambda match: _path(match[1]), found.message)
    manual = request.parallelism.mode is ParallelismMode.MANUAL and found.field in _PINNED
    if manual and found.field not in request.parallelism.wire():
        message = message.replace(
            f"{field}={found.value}", f"{field}={found.value} (Manual: what is not given is 1)", 1
        )
    return Infeasible(
        reason="Infeasible" if found.field == "globalBatch" else "ContradictoryPlan",
        field=field,
        value=str(found.value),
        nearest=found.nearest[:256],
        message=message[:1024],
    )


def _path(name: str) -> str:
    """Of a pin, of another field of the request, or of the plan itself."""
    return _PATHS.get(name, f"parallelism.{name}" if name in _PINNED else f"plan.{name}")
