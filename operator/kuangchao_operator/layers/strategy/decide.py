"""The planner: a pure function from a request to a plan, or to the reason why there is none.

First the laws, then the search over what is open, then words for its outcome. Equal requests give equal bytes. It never
changes what the user wants to train.
"""

from functools import partial

from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import Infeasible, ParallelPlan, PlanOutcome, PlanRequest
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.fewest import fewest
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.search.need import Evidence
from kuangchao_operator.layers.strategy.search.plans import plan_of, setting_of
from kuangchao_operator.layers.strategy.search.possible import possible
from kuangchao_operator.layers.strategy.search.precision import not_built
from kuangchao_operator.layers.strategy.search.rank import Scored
from kuangchao_operator.layers.strategy.search.reasons import Reasons
from kuangchao_operator.layers.strategy.search.rescue import rescue
from kuangchao_operator.layers.strategy.search.trial import Trial, trial
from kuangchao_operator.layers.strategy.search.unmeasured import unmeasured


def plan(request: PlanRequest, known: Knowledge) -> PlanOutcome:
    """The plan, or why there is none. `measured_peak_bytes` is the peak of the plan made without it."""
    if request.measured_peak_bytes is None:
        return _plan(request, known, None)
    first = plan(request.replace(measured_peak_bytes=None), known)
    return first if first.plan is None else replan(first.plan, request, known)


def replan(previous: ParallelPlan, request: PlanRequest, known: Knowledge) -> PlanOutcome:
    """A plan that needs less than `previous`, which was seen not to fit.

    The peak is compared with what the model alone estimates: the figures of `previous` may be corrected already.
    """
    broken = _violated(request, known)
    if broken is not None:
        return PlanOutcome(infeasible=broken)
    setting = setting_of(previous, request)
    estimated = trial(request, known).memory.stages(setting)
    # a peak in main memory is that of the whole process, one on a device what its allocator has given out
    whole = request.shapes[0].kind == "cpu"
    evidence = Evidence(
        measured_bytes=request.measured_peak_bytes or 0,
        estimated_bytes=max((s.reserved_bytes if whole else s.total_bytes for s in estimated), default=0),
        setting=setting,
        outside_bytes=known.calibration.backends[setting.backend].runtime_bytes if whole else 0,
    )
    return _plan(request, known, evidence)


def _plan(request: PlanRequest, known: Knowledge, evidence: Evidence | None) -> PlanOutcome:
    broken = _violated(request, known)
    if broken is not None:
        return PlanOutcome(infeasible=broken)
    tried = _sized(trial(request, known, evidence))
    refused = not_built(tried) or unmeasured(tried)
    if refused is not None:
        return PlanOutcome(infeasible=refused)
    best = tried.best()
    if best is None:
        return PlanOutcome(infeasible=rescue(tried))
    return PlanOutcome(plan=_explained(tried, best, request.content_hash()))


def _violated(request: PlanRequest, known: Knowledge) -> Infeasible | None:
    return laws.violated(request, partial(possible, known=known))


def _explained(tried: Trial, best: Scored, digest: str) -> ParallelPlan:
    reasons = Reasons(tried.search, best, tried.closed, kept=not tried.request.what_if)
    return plan_of(best, tried.memory, tried.request, tried.shape, digest, reasons.alternatives(), reasons.rejected())


def _sized(tried: Trial) -> Trial:
    """With objective devices the same on the fewest of the numbers tried; a job that will run keeps its devices."""
    request = tried.request
    if request.parallelism.objective is not Objective.DEVICES or not request.what_if:
        return tried

    def fits(devices: int) -> bool:
        wish = request.replace(devices=devices)
        return laws.lawful(wish) and tried.again(wish).search.feasible()

    count = fewest(request.devices, request.per_pod, fits)
    return tried if count == request.devices else tried.again(request.replace(devices=count))
