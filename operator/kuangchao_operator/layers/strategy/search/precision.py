"""A precision that the executor does not train: which others would do, each tried before it is named. Pure."""

from typing import Final

from kuangchao_contracts.plan import Infeasible, PlanRequest, Precision, StageMemory
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.search.rescue import rescue
from kuangchao_operator.layers.strategy.search.trial import Trial, trial

_NOT_BUILT: Final = {
    Precision.BF16_PURE: "keeps parameters in fp32",
    Precision.FP16_PURE: "keeps parameters in fp32",
    Precision.FP8: "has no fp8 kernels",
}
BUILT: Final = (Precision.BF16, Precision.FP16, Precision.FP32)
"""What the executor trains, in the order in which it takes the place of another."""


def not_built(tried: Trial, memory: tuple[StageMemory, ...]) -> Infeasible | None:
    """The refusal of such a precision, judged after its memory: what it would need is worth knowing even so."""
    request = tried.request
    precision = request.training.precision
    if not request.managed or request.what_if or precision not in _NOT_BUILT:
        return None
    others = [trial(_in(request, one), tried.known) for one in BUILT]
    fits = (one.request.training.precision.value for one in others if any(True for _ in one.search.ranked()))
    fitting = next(fits, None)
    if fitting is not None:
        way = f"nearest legal training.precision: {fitting}"
    else:
        way = f"of {', '.join(BUILT)} none fits these devices: {rescue(others[0]).message}"
    return refused(
        reason="Infeasible",
        field="training.precision",
        value=precision.value,
        nearest=fitting,
        memory=memory,
        rejected=laws.rejected_axes(request),
        message=f"training.precision={precision.value}: not built yet, the executor {_NOT_BUILT[precision]}; {way}",
    )


def _in(request: PlanRequest, precision: Precision) -> PlanRequest:
    return request.replace(training=request.training.replace(precision=precision))
