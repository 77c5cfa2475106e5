"""The difference of two plans in words: what changed, and what it means for memory and time. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from kuangchao_contracts.parallel import StepEstimate
from kuangchao_contracts.plan import ParallelPlan, StageMemory
from kuangchao_contracts.units import human_bytes
from kuangchao_operator.layers.strategy.shown import change, duration, percent

_WORDS: Final[dict[str, tuple[str, str, str]]] = {
    "world_size": ("devices", "more ranks share the work", "fewer ranks share the work"),
    "pods": ("pods", "", ""),
    "per_pod": ("devices of a pod", "more ranks are neighbours on one node", "fewer ranks are neighbours on one node"),
    "tensor": ("tensor", "a layer is divided over more ranks", "a layer is divided over fewer ranks"),
    "pipeline": ("pipeline", "more stages with fewer layers each", "fewer stages with more layers each"),
    "virtual_stages": ("virtual stages", "shorter bubbles, more messages", "longer bubbles, fewer messages"),
    "context": ("context", "a sequence is divided over more ranks", "a sequence is divided over fewer ranks"),
    "data": ("data", "more copies, each with less of the batch", "fewer copies, each with more of the batch"),
    "expert": ("expert", "a rank holds fewer experts", "a rank holds more experts"),
    "expert_tensor": ("expert tensor", "an expert is divided over more ranks", "an expert is divided over fewer ranks"),
    "shard_ranks": ("ranks of a shard group", "", ""),
    "micro_batch": ("micro-batch", "more samples are at work at once", "fewer samples are at work at once"),
    "accumulation_steps": ("micro-batches of a step", "", ""),
    "global_batch": ("global batch", "the training itself is another", "the training itself is another"),
    "device_memory_bytes": ("memory of a device", "", ""),
}
"""Numbers of a plan: name, what more of it means, what less of it means."""
_CHOICES: Final = {
    "schedule": "schedule",
    "sharding": "sharding",
    "recompute": "recomputation",
    "sequence": "sequence parallelism",
    "objective": "objective",
    "managed": "managed by our executor",
    "memory_checked": "memory checked",
    "stage_layers": "layers of the stages",
}
"""Members of a plan that are no amounts."""
_PARTS: Final = ("compute", "tensor", "context", "expert", "pipeline", "data", "optimizer")
_SAID: Final = frozenset({*_WORDS, *_CHOICES, "memory", "step", "step_microseconds", "bubble_ppm"})


def diff(before: ParallelPlan, after: ParallelPlan) -> tuple[str, ...]:
    """Each difference in a line, sizes first, then memory, then time; none for equal plans."""
    if before == after:
        return ()
    return (
        *_amounts(before, after),
        *_choices(before, after),
        *_memory(before.memory, after.memory),
        *_time(before, after),
        *_rest(before, after),
    )


def _amounts(before: ParallelPlan, after: ParallelPlan) -> Iterator[str]:
    for member, (name, more, less) in _WORDS.items():
        old, new = getattr(before, member), getattr(after, member)
        if old == new:
            continue
        meaning = more if new > old else less
        shown = (human_bytes(old), human_bytes(new)) if member.endswith("_bytes") else (old, new)
        yield f"{name} {shown[0]} -> {shown[1]}" + (f": {meaning}" if meaning else "")


def _choices(before: ParallelPlan, after: ParallelPlan) -> Iterator[str]:
    for member, name in _CHOICES.items():
        old, new = getattr(before, member), getattr(after, member)
        if old != new:
            yield f"{name}: {_word(old)} -> {_word(new)}"


def _word(given: Any) -> str:
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, tuple):
        return ", ".join(map(str, given)) or "even"
    return str(given)


def _memory(before: tuple[StageMemory, ...], after: tuple[StageMemory, ...]) -> Iterator[str]:
    if not before or not after:
        if before or after:
            yield "memory: " + ("was estimated, and is not any more" if before else "is estimated now")
        return
    old, new = (max(stages, key=lambda stage: (stage.reserved_bytes, -stage.stage)) for stages in (before, after))
    parts = [
        (name, getattr(old, f"{name}_bytes"), getattr(new, f"{name}_bytes"))
        for name in ("parameters", "gradients", "optimizer", "activations", "other")
    ]
    moved = ", ".join(f"{name} {human_bytes(a)} -> {human_bytes(b)}" for name, a, b in parts if a != b)
    if old.reserved_bytes != new.reserved_bytes or moved:
        which = f" (stage {old.stage} -> {new.stage})" if old.stage != new.stage else ""
        head = (
            f"memory of the fullest stage{which} {human_bytes(old.reserved_bytes)} -> {human_bytes(new.reserved_bytes)}"
        )
        yield head + (f": {moved}" if moved else "")
    elif before != after:
        yield "memory of other stages differs, that of the fullest one does not"


def _time(before: ParallelPlan, after: ParallelPlan) -> Iterator[str]:
    old, new = before.step_microseconds, after.step_microseconds
    if (old is None) != (new is None):
        yield "step time: " + ("was estimated, and is not any more" if new is None else "is estimated now")
    elif old is not None and new is not None and old != new:
        yield f"step {duration(old)} -> {duration(new)} ({change(old, new)})"
    yield from _parts(before.step, after.step)
    if before.bubble_ppm != after.bubble_ppm:
        yield f"bubble {percent(before.bubble_ppm)} -> {percent(after.bubble_ppm)}"


def _parts(before: StepEstimate | None, after: StepEstimate | None) -> Iterator[str]:
    if before is None or after is None:
        if before != after:
            yield "parts of the step's time: " + ("are not known any more" if after is None else "are known now")
        return
    pairs = [(name, getattr(before, f"{name}_us"), getattr(after, f"{name}_us")) for name in _PARTS]
    moved = ", ".join(f"{name} {duration(a)} -> {duration(b)}" for name, a, b in pairs if a != b)
    if moved:
        yield f"its parts: {moved}"
    for name, old, new in (("MFU", before.mfu_ppm, after.mfu_ppm), ("HFU", before.hfu_ppm, after.hfu_ppm)):
        if old != new:
            yield f"{name} {percent(old)} -> {percent(new)}"


def _rest(before: ParallelPlan, after: ParallelPlan) -> Iterator[str]:
    """Members that follow from others or explain them are named, not told."""
    others = [name for name in ParallelPlan.model_fields if name not in _SAID]
    changed = [name.replace("_", " ") for name in others if getattr(before, name) != getattr(after, name)]
    if changed:
        yield f"also different: {', '.join(changed)}"
