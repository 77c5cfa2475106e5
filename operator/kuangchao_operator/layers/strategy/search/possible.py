"""Whether a request can be laid out at all, memory and time being no matter: the cheap question of a search. Pure.

A request of which each pin is lawful may still have no layout, where what is open cannot come out even with all of it.
"""

from kuangchao_contracts.plan import PlanRequest
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.search.layouts import layouts, sketches
from kuangchao_operator.layers.strategy.search.space import Space
from kuangchao_operator.layers.strategy.search.trial import trial
from kuangchao_operator.layers.strategy.search.variants import pipelines


def possible(request: PlanRequest, known: Knowledge) -> bool:
    """Whether a request breaks no law and some division of its ranks, with a micro-batch, a schedule and a cut, keeps
    those of layouts."""
    return laws.lawful(request) and laid_out(trial(request, known).search.space)


def laid_out(space: Space) -> bool:
    """Whether a space has any setting."""
    rows = (sketch for layout in layouts(space) for sketch in sketches(space, layout))
    return any(True for sketch in rows for _ in pipelines(space, sketch))
