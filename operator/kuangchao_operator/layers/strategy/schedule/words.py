"""What is said beside every drawing of a step: its figures, and what is left out of it. Pure."""

from kuangchao_operator.layers.strategy.schedule.simulation import Simulation
from kuangchao_operator.layers.strategy.shown import duration, percent


def headline(step: Simulation) -> str:
    """Schedule, sizes, time and bubble in a line."""
    stages = step.timeline.stages
    shape = f"{step.schedule}: {counted(stages, 'stage')}" if stages > 1 else "1 stage"
    chunks = f" of {step.virtual} chunks" if step.virtual > 1 else ""
    time = f"step {duration(step.step_us)}, " if step.timed else ""
    batches = counted(step.micro_batches, "micro-batch")
    return f"{shape}{chunks}, {batches}; {time}bubble {percent(step.bubble_ppm)}{_steady(step)}"


def _steady(step: Simulation) -> str:
    if step.steady_bubble_ppm == step.bubble_ppm:
        return ""
    return f" ({percent(step.steady_bubble_ppm)} if no stage waits for the others between steps)"


def notes(step: Simulation, stages: int, *, coarse: bool = False) -> tuple[str, ...]:
    """What a reader must know of a drawing of `stages` of the stages; `coarse`: its columns may hold several passes."""
    found = []
    if not step.timed:
        found.append(
            "No time is known for this model and device: a backward pass is drawn as two forward passes, all chunks as"
            " equal."
        )
    if step.simulated < step.micro_batches:
        found.append(
            f"Run and drawn with {step.simulated} of {step.micro_batches} micro-batches; the figures are those of all,"
            " with the rest at the pace of the second half."
        )
    if stages < step.timeline.stages:
        found.append(f"{stages} of {step.timeline.stages} stages are shown, evenly spread.")
    if coarse:
        found.append("A column shows what takes most of its time.")
    return tuple(found)


def counted(number: int, thing: str) -> str:
    """1 stage, 2 stages, 3 micro-batches."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}es" if thing.endswith("ch") else f"{number} {thing}s"
