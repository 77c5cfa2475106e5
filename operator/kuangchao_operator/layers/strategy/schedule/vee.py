"""The order of ZB-V: the model goes down the stages and up again, each stage has an early and a late chunk. Pure.

Source: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3 (V-ZB), for passes of equal length.
"""

from collections.abc import Iterator

from kuangchao_operator.layers.strategy.schedule.passes import Kind, Pass

F, B, W = Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT
DOWN, UP = 0, 1


def vee(stage: int, pipeline: int, micro_batches: int) -> Iterator[Pass]:
    """Passes of a stage. The order is that of enough micro-batches to fill the pipeline, less those that are not."""
    return (step for step in _Vee().run(stage, pipeline, micro_batches) if step.micro_batch < micro_batches)


class _Vee:
    """Counts micro-batches by kind and chunk: each pass takes the next one of its kind."""

    def __init__(self) -> None:
        self.done: dict[tuple[Kind, int], int] = {(kind, chunk): 0 for kind in Kind for chunk in (DOWN, UP)}

    def next(self, kind: Kind, chunk: int) -> Pass:
        batch = self.done[kind, chunk]
        self.done[kind, chunk] = batch + 1
        return Pass(kind, batch, chunk)

    def run(self, stage: int, pipeline: int, micro_batches: int) -> Iterator[Pass]:
        count = max(2 * pipeline - 1, micro_batches)
        yield from self._warm_up(stage, pipeline)
        while self.done[F, UP] < count:
            if self.done[F, DOWN] < count:
                yield self.next(F, DOWN)
            yield self.next(B, DOWN)
            yield self.next(W, DOWN)
            yield self.next(F, UP)
            yield self.next(B, UP)
            yield self.next(W, UP)
        yield from self._cool_down(stage, pipeline, count)

    def _warm_up(self, stage: int, pipeline: int) -> Iterator[Pass]:
        for _ in range(2 * (pipeline - stage) - 1):
            yield self.next(F, DOWN)
        for _ in range(stage):
            yield self.next(F, UP)
            yield self.next(F, DOWN)
        for _ in range(pipeline - stage):
            yield self.next(F, UP)
            yield self.next(B, UP)
            yield self.next(W, UP)

    def _cool_down(self, stage: int, pipeline: int, count: int) -> Iterator[Pass]:
        for _ in range(stage):
            yield self.next(B, DOWN)
            yield self.next(B, UP)
        for _ in range(pipeline - stage):
            yield self.next(B, DOWN)
            yield self.next(W, DOWN)
        for chunk in (UP, DOWN):
            while self.done[W, chunk] < count:
                yield self.next(W, chunk)
