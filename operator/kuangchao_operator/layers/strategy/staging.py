"""Laws of pipelines: stages, the layers that each one gets, and schedules. Pure.

A stage without a module waits for ever for what it should hand on, and a cut that does not come out was seen to drop
layers silently; so each is refused.
"""

from typing import Final

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.sizes import Broken, Sizes

ONE_CHUNK: Final = frozenset({Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_H2})
"""Schedules in which a stage has one run of layers."""
MOST_SHOWN: Final = 128
"""Characters of a list in a message."""
ENDS: Final = 2
"""Stages that need no layer in some frameworks: the first has the embedding, the last the output layer."""


def stages(sizes: Sizes) -> Broken | None:
    """No more stages than modules: the layers, and an embedding and an output layer where these may stand alone."""
    model, virtual = sizes.model, sizes.virtual or fewest_chunks(sizes.schedule)
    pipeline = sizes.pipeline or (2 if virtual > 1 else 1)
    if model is None or sizes.stage_layers or pipeline * virtual <= max(1, _modules(model.layers, sizes)):
        return None
    of = f"makes {pipeline * virtual} stages of {model.layers} layers"
    end = "and a stage without layers would hang"
    if sizes.pipeline is None and sizes.virtual is None and sizes.schedule is not None:
        # the pipeline is the planner's to choose, and the shortest one is too long
        schedule = sizes.schedule.value
        return Broken("schedule", schedule, f"schedule={schedule} {of} at the least, {end}")
    names = (("virtualStages", virtual), ("pipeline", pipeline))
    (field, size), (other, _) = names if (sizes.virtual or 1) > 1 else names[::-1]
    by = f" with schedule {sizes.schedule.value}" if sizes.virtual is None and virtual > 1 and sizes.schedule else ""
    return Broken(field, size, f"{field}={size}{by} {of}, {end}", (other, "schedule"))


def fewest_chunks(schedule: Schedule | None) -> int:
    """Runs of layers that a stage has at the least."""
    return 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_V) else 1


def _modules(layers: int, sizes: Sizes) -> int:
    return layers + (ENDS if sizes.lone_ends else 0)


def explicit(sizes: Sizes) -> Broken | None:
    """Layers of each stage, where they are given: one number for each, no layer lost, no stage empty. The first may
    have the embedding alone, the last the output layer: that the task's chain has one, its worker judges."""
    layers, count = sizes.stage_layers, (sizes.pipeline or 1) * (sizes.virtual or 1)
    if not layers:
        return None
    # how many layers there are is for the worker to judge where the model is not described
    whole = sum(layers) if sizes.model is None else sizes.model.layers
    if sizes.pipeline is not None and len(layers) != count:
        why = f"has {len(layers)} numbers for {sizes.pipeline} x {sizes.virtual or 1} stages"
        return _layout(layers, why, ("pipeline", "virtualStages"))
    if sum(layers) != whole:
        why = f"places {sum(layers)} layers and the model has {whole}: the rest would be {_fate(sum(layers), whole)}"
        return _layout(layers, why)
    if not any(layers):
        return _layout(layers, "places no layers")
    if 0 in layers[1:-1]:
        empty = layers.index(0, 1)
        return _layout(layers, f"leaves stage {empty} without layers, and its neighbours would wait for it for ever")
    return None


def chunks(sizes: Sizes) -> Broken | None:
    """How many runs of layers a stage has is the schedule's to say."""
    virtual, schedule = sizes.virtual, sizes.schedule
    if sizes.pipeline == 1 and schedule not in (None, Schedule.ONE_F_ONE_B) and (virtual or 1) == 1:
        why = f"schedule={schedule.value} orders the stages of a pipeline and pipeline=1"
        return Broken("schedule", schedule.value, why, ("pipeline",))
    if virtual is None:
        return None
    if virtual > 1 and sizes.pipeline == 1:
        return Broken("virtualStages", virtual, f"virtualStages={virtual} needs a pipeline", ("pipeline",))
    if schedule is None or sizes.pipeline == 1:
        return None
    legal = 1 if schedule in ONE_CHUNK else 2 if schedule is Schedule.ZERO_BUBBLE_V else max(virtual, 2)
    if schedule is Schedule.GPIPE or virtual == legal:
        return None
    why = (
        f"virtualStages={virtual} contradicts schedule {schedule.value}, in which a stage has {legal}"
        f"{' or more' if schedule is Schedule.INTERLEAVED else ''}"
    )
    return Broken("virtualStages", virtual, why, ("schedule",))


def interleaving(sizes: Sizes) -> Broken | None:
    """Interleaved stages hand on groups of micro-batches, none smaller than the pipeline: there is such a division of
    any number that is no smaller itself (`group_size`)."""
    pipeline, virtual, batches = sizes.pipeline, sizes.virtual, sizes.micro_batches
    if pipeline is None or virtual is None or batches is None or pipeline == 1 or virtual == 1:
        return None
    if sizes.global_batch is not None:
        return None  # `filled_pipeline` says which of its sizes is wrong
    if sizes.schedule in (Schedule.GPIPE, Schedule.ZERO_BUBBLE_V) or batches >= pipeline:
        return None
    why = f"{batches} micro-batches are fewer than the {pipeline} stages that interleave"
    return Broken("accumulationSteps", batches, why, ("virtualStages", "pipeline"))


def _layout(layers: tuple[int, ...], why: str, instead: tuple[str, ...] = ()) -> Broken:
    text = ", ".join(map(str, layers))
    return Broken("stageLayers", text, f"stageLayers=[{_shown(text)}] {why}", instead)


def _shown(text: str) -> str:
    """The beginning of a long list, so that there is room for what is wrong with it."""
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN].rsplit(",", 1)[0] + ", ..."


def _fate(placed: int, whole: int) -> str:
    return "left out silently" if placed < whole else "made up"


LAWS = (explicit, stages, chunks, interleaving)
"""In the order in which a person would want to hear of them."""
