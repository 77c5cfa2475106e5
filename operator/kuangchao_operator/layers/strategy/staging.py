"""Laws of pipelines: stages, the layers that each one gets, and schedules. Pure.

A stage without a module waits for ever for what it should hand on, and a cut that does not come out was seen to drop
layers silently; so each is refused with the nearest legal value.
"""

from typing import Final

from kuangchao_contracts.parallel import Schedule
from kuangchao_operator.layers.strategy.numbers import divisors
from kuangchao_operator.layers.strategy.sizes import Contradiction, Sizes

ONE_CHUNK: Final = frozenset({Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_H2})
"""Schedules in which a stage has one run of layers."""
MOST_SHOWN: Final = 128
"""Characters of a list in a message."""
ENDS: Final = 2
"""Stages that need no layer in some frameworks: the first has the embedding, the last the output layer."""


def stages(sizes: Sizes) -> Contradiction | None:
    """No more stages than modules: the layers, and an embedding and an output layer where these may stand alone."""
    model, virtual = sizes.model, sizes.virtual or fewest_chunks(sizes.schedule)
    pipeline = sizes.pipeline or (2 if virtual > 1 else 1)
    if model is None or sizes.stage_layers or pipeline * virtual <= max(1, _modules(model.layers, sizes)):
        return None
    if sizes.pipeline is None and sizes.virtual is None and sizes.schedule is not None:
        return _too_few(sizes.schedule, virtual, model.layers)
    many = (sizes.virtual or 1) > 1
    field, size, other = ("virtualStages", virtual, pipeline) if many else ("pipeline", pipeline, virtual)
    most = max(1, _modules(model.layers, sizes) // other)
    if field == "pipeline" and sizes.devices is not None:
        most = next(n for n in divisors(sizes.devices) if n <= most)
    by = f" with schedule {sizes.schedule.value}" if sizes.virtual is None and virtual > 1 and sizes.schedule else ""
    return Contradiction(
        field,
        size,
        str(most),
        f"{field}={size}{by} makes {pipeline * virtual} stages of {model.layers} layers, and a stage without layers"
        f" would hang; nearest legal {field}: {most}",
    )


def fewest_chunks(schedule: Schedule | None) -> int:
    """Runs of layers that a stage has at the least."""
    return 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE_V) else 1


def _too_few(schedule: Schedule, chunks: int, layers: int) -> Contradiction:
    """Where the pipeline is the planner's to choose and the shortest one is too long."""
    plain = Schedule.ONE_F_ONE_B.value
    message = (
        f"schedule={schedule.value} makes {2 * chunks} stages of {layers} layers at the least, and a stage without"
        f" layers would hang; nearest legal schedule: {plain}"
    )
    return Contradiction("schedule", schedule.value, plain, message)


def _modules(layers: int, sizes: Sizes) -> int:
    return layers + (ENDS if sizes.lone_ends else 0)


def explicit(sizes: Sizes) -> Contradiction | None:
    """Layers of each stage, where they are given: one number for each, no layer lost, no stage empty."""
    layers, count = sizes.stage_layers, (sizes.pipeline or 1) * (sizes.virtual or 1)
    if not layers or sizes.model is None:
        return None
    whole, text = sizes.model.layers, ", ".join(map(str, layers))
    if sizes.pipeline is not None and len(layers) != count:
        why = f"has {len(layers)} numbers for {sizes.pipeline} x {sizes.virtual or 1} stages"
        return _layout(text, f"{count} numbers that sum to {whole}", why)
    if sum(layers) != whole:
        why = f"places {sum(layers)} layers and the model has {whole}: the rest would be {_fate(sum(layers), whole)}"
        return _layout(text, _mended(layers, whole), why)
    inner = range(1, len(layers) - 1) if sizes.lone_ends else range(len(layers))
    empty = next((n for n in inner if layers[n] == 0), None)
    if empty is not None:
        why = f"leaves stage {empty} without layers, and its neighbours would wait for it for ever"
        return _layout(text, _filled(layers, empty), why)
    return None


def chunks(sizes: Sizes) -> Contradiction | None:
    """How many runs of layers a stage has is the schedule's to say."""
    virtual, schedule = sizes.virtual, sizes.schedule
    if sizes.pipeline == 1 and schedule not in (None, Schedule.ONE_F_ONE_B) and (virtual or 1) == 1:
        message = (
            f"schedule={schedule.value} orders the stages of a pipeline and pipeline=1; nearest legal schedule: 1f1b"
        )
        return Contradiction("schedule", schedule.value, Schedule.ONE_F_ONE_B.value, message)
    if virtual is None:
        return None
    if virtual > 1 and sizes.pipeline == 1:
        message = f"virtualStages={virtual} needs a pipeline; nearest legal virtualStages: 1"
        return Contradiction("virtualStages", virtual, "1", message)
    if schedule is None or sizes.pipeline == 1:
        return None
    legal = 1 if schedule in ONE_CHUNK else 2 if schedule is Schedule.ZERO_BUBBLE_V else max(virtual, 2)
    if schedule is Schedule.GPIPE or virtual == legal:
        return None
    message = (
        f"virtualStages={virtual} contradicts schedule {schedule.value}, in which a stage has {legal}"
        f"{' or more' if schedule is Schedule.INTERLEAVED else ''}; nearest legal virtualStages: {legal}"
    )
    return Contradiction("virtualStages", virtual, str(legal), message)


def interleaving(sizes: Sizes) -> Contradiction | None:
    """Interleaved stages hand on groups of micro-batches, none smaller than the pipeline: there is such a division of
    any number that is no smaller itself (`group_size`)."""
    pipeline, virtual, batches = sizes.pipeline, sizes.virtual, sizes.micro_batches
    if pipeline is None or virtual is None or batches is None or pipeline == 1 or virtual == 1:
        return None
    if sizes.global_batch is not None:
        return None  # `filled_pipeline` says which of its sizes is wrong
    if sizes.schedule in (Schedule.GPIPE, Schedule.ZERO_BUBBLE_V):
        return None
    if batches >= pipeline:
        return None
    return Contradiction(
        "accumulationSteps",
        batches,
        str(pipeline),
        f"{batches} micro-batches are fewer than the {pipeline} stages that interleave; nearest legal number:"
        f" {pipeline}",
    )


def _layout(text: str, nearest: str, why: str) -> Contradiction:
    message = f"stageLayers=[{_shown(text)}] {why}; nearest legal: {_shown(nearest)}"
    return Contradiction("stageLayers", text, nearest, message)


def _shown(text: str) -> str:
    """The beginning of a long list, so that there is room for what is wrong with it."""
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN].rsplit(",", 1)[0] + ", ..."


def _fate(placed: int, whole: int) -> str:
    return "left out silently" if placed < whole else "made up"


def _mended(layers: tuple[int, ...], whole: int) -> str:
    """The layout with what is missing or too much taken from the stages that have most, last ones first."""
    sizes, missing = list(layers), whole - sum(layers)
    for _ in range(min(abs(missing), 4096)):
        step = 1 if missing > 0 else -1
        order = sorted(range(len(sizes)), key=lambda n: (step * sizes[n], -n))
        sizes[order[0]] += step
    return "[" + ", ".join(map(str, sizes)) + "]" if sum(sizes) == whole and min(sizes) >= 0 else f"a sum of {whole}"


def _filled(layers: tuple[int, ...], empty: int) -> str:
    sizes = list(layers)
    most = max(range(len(sizes)), key=lambda n: (sizes[n], -n))
    sizes[most] -= 1
    sizes[empty] += 1
    return "[" + ", ".join(map(str, sizes)) + "]"


LAWS = (explicit, stages, chunks, interleaving)
"""In the order in which a person would want to hear of them."""
