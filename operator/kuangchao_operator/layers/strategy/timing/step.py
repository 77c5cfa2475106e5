"""How long one step of a setting takes on a machine, by cause. Pure; cheap enough for a search to ask 10^5 times.

A step is the slowest stage's work for every micro-batch, the bubble of the schedule, what sends between stages,
gradients and parameters nothing hides, and the update. Bubbles: (p-1) times a stage's forward and backward pass for
GPipe and 1F1B, less by the number of chunks where they interleave (Narayanan et al. 2021), and with the gradients of
weights taken out of it once or twice under zero-bubble schedules (Qi et al. 2023, 2024).
"""

from functools import lru_cache
from typing import NamedTuple

from kuangchao_contracts.parallel import Schedule
from kuangchao_contracts.plan import TransformerModel
from kuangchao_operator.layers.strategy.footprint.layout import Layout
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.timing.clock import Clock, clock_of
from kuangchao_operator.layers.strategy.timing.flops import operations
from kuangchao_operator.layers.strategy.timing.hardware import Hardware
from kuangchao_operator.layers.strategy.timing.layer import LayerTime, work_of
from kuangchao_operator.layers.strategy.timing.machine import Machine
from kuangchao_operator.layers.strategy.timing.replicas import owed
from kuangchao_operator.layers.strategy.timing.stage import MICRO, Counts, Kinds, cut, hop, kinds, total

PPM = 1_000_000
_WEIGHTS_IN_BUBBLE = {Schedule.ZERO_BUBBLE_H1: 2, Schedule.ZERO_BUBBLE_H2: 3, Schedule.ZERO_BUBBLE_V: 3}
"""How many gradients of weights fill the bubble, for each stage: (p-1)(F+B-W) is left of (p-1)(F+B+W), or
(p-1)(F+B-2W)."""


class StepTime(NamedTuple):
    """Integer microseconds: `step_us` is the sum of the parts. Each part counts only what nothing hides."""

    step_us: int
    compute_us: int
    tensor_us: int
    context_us: int
    expert_us: int
    pipeline_us: int
    """The bubble, and sends between stages."""
    data_us: int
    optimizer_us: int
    bubble_ppm: int
    """The bubble's share of the step."""
    mfu_ppm: int
    """Operations that the model needs, over time and peak in its precision."""
    hfu_ppm: int
    """The same with what recomputation does again."""


class _Stage(NamedTuple):
    """A stage that is like others: what it runs, how many are like it."""

    counts: Counts
    number: int


def step_time(setting: Setting, machine: Machine, hardware: Hardware) -> StepTime:
    """One step. Raises ImpossibleLayoutError."""
    clock = clock_of(machine, hardware)
    times = kinds(work_of(setting), clock)
    stages = _stages(setting.model, setting.layout, folded=setting.folded)
    slowest, filling = _slowest(stages, times)
    stage = total(slowest, times)
    sends, bubble = _pipeline(setting, stage, filling, clock)
    data, optimizer = owed(setting, stages[0].counts, stage, clock)
    batches = setting.micro_batches
    forward, backward = stage.forward, stage.backward
    return _rounded(
        setting,
        clock,
        (
            batches * (forward.compute + backward.compute + stage.weight),
            batches * (forward.tensor + backward.tensor),
            batches * (forward.context + backward.context),
            batches * (forward.expert + backward.expert),
            sends + bubble,
            data,
            optimizer,
        ),
        bubble,
    )


def _rounded(setting: Setting, clock: Clock, parts: tuple[float, ...], bubble: float) -> StepTime:
    whole = [round(part * MICRO) for part in parts]
    step = max(1, sum(whole))
    done = operations(setting)
    able = clock.kind.peak(setting.precision) * setting.layout.world * step / MICRO
    shares = (bubble * MICRO * PPM / step, done.model * PPM / able, done.hardware * PPM / able)
    return StepTime(step, *whole, *(round(share) for share in shares))


@lru_cache(maxsize=8192)
def _stages(model: TransformerModel, layout: Layout, *, folded: bool) -> tuple[_Stage, ...]:
    """Stages that differ; the first stage first."""
    numbers: dict[Counts, int] = {}
    for chunks in cut(model, layout, folded=folded):
        counts = Counts(*(sum(column) for column in zip(*chunks, strict=True)))
        numbers[counts] = numbers.get(counts, 0) + 1
    return tuple(_Stage(counts, number) for counts, number in numbers.items())


def _slowest(stages: tuple[_Stage, ...], times: Kinds) -> tuple[Counts, float]:
    """The slowest stage, and the seconds of one micro-batch in all the others."""
    most, everything, slowest = -1.0, 0.0, stages[0].counts
    for counts, number in stages:
        seconds = 0.0
        for layers, time in zip(counts, times.seconds, strict=True):
            seconds += layers * time
        everything += number * seconds
        if seconds > most:
            most, slowest = seconds, counts
    return slowest, everything - most


def _pipeline(setting: Setting, stage: LayerTime, filling: float, clock: Clock) -> tuple[float, float]:
    """Seconds of sends that nothing hides, and of the bubble."""
    layout = setting.layout
    if layout.pipeline == 1:
        return 0.0, 0.0
    seconds = 2 * hop(setting, clock)
    chunks = layout.virtual
    shown = 1.0
    if chunks > 1:
        shown = 1 - clock.hardware.software_of(setting.backend).pipeline_overlap_permille / 1000
    sends = setting.micro_batches * chunks * seconds * shown + (layout.pipeline - 1) * seconds
    return sends, _bubble(setting.schedule, layout, stage, filling)


def _bubble(schedule: Schedule, layout: Layout, stage: LayerTime, filling: float) -> float:
    if schedule is Schedule.INTERLEAVED:
        return filling / layout.virtual
    left = filling - _WEIGHTS_IN_BUBBLE.get(schedule, 0) * (layout.pipeline - 1) * stage.weight
    least = 0.0
    if schedule is Schedule.ZERO_BUBBLE_H1:
        # no gradient of its own is there before a stage's first forward pass, however many it has afterwards
        least = filling * stage.forward.total / (stage.forward.total + stage.backward.total + stage.weight)
    return max(least, left)
