"""A request with all that its search needs: the device that decides, the memory model, the clock. Pure."""

from typing import NamedTuple

from kuangchao_contracts.parallel import Objective
from kuangchao_contracts.plan import DeviceShape, PlanRequest
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.knowledge import Knowledge
from kuangchao_operator.layers.strategy.runnable import RUNNABLE, closed_reason, open_axes
from kuangchao_operator.layers.strategy.search.best import Search
from kuangchao_operator.layers.strategy.search.need import Evidence, Memory
from kuangchao_operator.layers.strategy.search.rank import Clock, Scored
from kuangchao_operator.layers.strategy.search.space import space_of
from kuangchao_operator.layers.strategy.timing.machine import machine_of
from kuangchao_operator.layers.strategy.timing.step import StepTime, step_time


class Trial(NamedTuple):
    """One request, ready to be searched."""

    request: PlanRequest
    known: Knowledge
    evidence: Evidence | None
    shape: DeviceShape
    """The class of device with the least memory: the scheduler may put a pod on any of them."""
    opened: frozenset[str]
    search: Search

    def again(self, request: PlanRequest) -> "Trial":
        """The same for another request, with what was measured."""
        return trial(request, self.known, self.evidence)

    def best(self) -> Scored | None:
        """The best of all that fits; None where nothing does."""
        return next(self.search.ranked(), None)

    def closed(self, name: str) -> str:
        """Why an axis is not the planner's to use; "" where it is."""
        return "" if name in self.opened else laws.mixed(self.request) or closed_reason(self.request, name)

    @property
    def memory(self) -> Memory:
        """The memory model of the search."""
        return self.search.memory


def trial(request: PlanRequest, known: Knowledge, evidence: Evidence | None = None) -> Trial:
    """Prepare a request that breaks no law."""
    shapes = laws.hosts(request)
    shape = weakest(shapes)
    opened = frozenset(RUNNABLE) if laws.mixed(request) else open_axes(request)
    space = space_of(request, shape, known.calibration, opened)
    memory = Memory(space, known.calibration, evidence)
    clock = _clock(shapes, known) if space.shaped else _untimed
    objective = request.parallelism.objective or Objective.TIME
    return Trial(request, known, evidence, shape, opened, Search(space, memory, clock, objective))


def weakest(shapes: tuple[DeviceShape, ...]) -> DeviceShape:
    """The class of device with the least memory. One that broke before anybody could tell its model or its memory
    counts only where there is no other: no pod gets it before both are known.
    """
    told = [one for one in shapes if one.kind == "cpu" or one.memory_bytes or one.model]
    return min(told or shapes, key=lambda one: (one.memory_bytes, one.model, one.per_node, one.nodes))


def _clock(shapes: tuple[DeviceShape, ...], known: Knowledge) -> Clock:
    """The time of a step on the slowest of the devices; unknown where one of them is."""
    found = {machine_of(shape, known.hardware): None for shape in shapes}
    machines = [machine for machine in found if machine is not None]
    if len(machines) < len(found):
        return _untimed

    def clock(setting: Setting) -> StepTime:
        return max((step_time(setting, machine, known.hardware) for machine in machines), key=_length)

    return clock


def _length(step: StepTime) -> int:
    return step.step_us


def _untimed(setting: Setting) -> None:  # noqa: ARG001 - the shape of a clock
    return None
