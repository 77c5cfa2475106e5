"""A precision that the executor does not train: which others would do, each tried before it is named. Pure.

It is judged before anything else that a search could say: what would do for such a precision would be refused for it.
"""

from typing import Final

from kuangchao_contracts.plan import Infeasible, PlanRequest, Precision, StageMemory
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.search.rescue import rescue
from kuangchao_operator.layers.strategy.search.trial import Trial

_NOT_BUILT: Final = {
    Precision.BF16_PURE: "keeps parameters in fp32",
    Precision.FP16_PURE: "keeps parameters in fp32",
    Precision.FP8: "has no fp8 kernels",
}
BUILT: Final = (Precision.BF16, Precision.FP16, Precision.FP32)
"""What the executor trains, in the order in which it takes the place of another."""


def not_built(tried: Trial) -> Infeasible | None:
    """The refusal of such a precision; where no other fits either it says what would do for the best of them."""
    request = tried.request
    precision = request.training.precision
    if not request.managed or request.what_if or precision not in _NOT_BUILT:
        return None
    others = [tried.again(_in(request, one)) for one in BUILT]
    fits = (one.request.training.precision.value for one in others if any(True for _ in one.search.ranked()))
    fitting = next(fits, None)
    if fitting is not None:
        way = f"nearest legal training.precision: {fitting}"
    else:
        way = f"of {', '.join(BUILT)} none fits these devices; with {BUILT[0].value} {rescue(others[0]).message}"
    return refused(
        reason="Infeasible",
        field="training.precision",
        value=precision.value,
        nearest=fitting,
        memory=_memory(tried),
        rejected=laws.rejected_axes(request),
        message=f"training.precision={precision.value}: not built yet, the executor {_NOT_BUILT[precision]}; {way}",
    )


def _memory(tried: Trial) -> tuple[StageMemory, ...]:
    """What the precision itself would need, or would at the least: worth knowing even so."""
    best, closest = tried.best(), tried.search.closest
    setting = best.setting if best is not None else closest.setting if closest is not None else None
    return () if setting is None else tried.memory.stages(setting)


def _in(request: PlanRequest, precision: Precision) -> PlanRequest:
    return request.replace(training=request.training.replace(precision=precision))
