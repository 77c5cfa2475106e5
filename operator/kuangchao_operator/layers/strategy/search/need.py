"""What a setting needs of a device, as estimated or as a measured peak corrects the estimate. Pure."""

from typing import Final, NamedTuple

from kuangchao_contracts.plan import StageMemory
from kuangchao_contracts.units import human_bytes, least_bytes, most_bytes
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.measured import measured_fullest, measured_peaks
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, fullest, peak, peaks, with_allocated
from kuangchao_operator.layers.strategy.footprint.phases import explained
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage, decisive, stages
from kuangchao_operator.layers.strategy.search.space import Space

MOST_COUNTED: Final = 256
MOST_STAGES: Final = 32
"""Stages that a plan lists one by one; of longer pipelines it lists the fullest of each run of stages."""


class Evidence(NamedTuple):
    """A plan that was seen not to fit: what was estimated for it, what was measured, and its setting."""

    measured_bytes: int
    estimated_bytes: int
    """As it is measured; 0: nothing was estimated."""
    setting: Setting
    outside_bytes: int = 0
    """Part of both that is the same under every plan."""

    @property
    def corrects(self) -> bool:
        """Whether the estimate was too low."""
        return 0 < self.estimated_bytes < self.measured_bytes

    @property
    def ratio(self) -> tuple[int, int]:
        """What the plan needed, measured and estimated."""
        return self.measured_bytes - self.outside_bytes, max(1, self.estimated_bytes - self.outside_bytes)


class Memory:
    """The memory model on one space, with what a measurement says of it."""

    def __init__(self, space: Space, calibration: Calibration, evidence: Evidence | None = None) -> None:
        self.space, self.evidence, self._calibration = space, evidence, calibration
        self._counted: dict[tuple[object, ...], tuple[Stage, ...]] = {}
        self._seen = 0 if evidence is None else self.need(evidence.setting)

    @property
    def checked(self) -> bool:
        """Whether there is anything to compare: a model, and a device whose memory is known."""
        return self.space.known and self.space.budget is not None

    def need(self, setting: Setting) -> int:
        """Bytes that the fullest device must have; 0 without a model."""
        if not self.space.known:
            return 0
        return self._corrected(self._fullest(setting), setting).device_bytes

    def fits(self, setting: Setting) -> bool:
        """Whether every device has enough, and a plan that failed is not made again."""
        if self.evidence is None:
            return self._within(setting)
        need = self.need(setting)
        return (self.space.budget is None or need <= self.space.budget) and self.less(setting, need)

    def _within(self, setting: Setting) -> bool:
        """Whether no stage needs more than there is; the first that does is enough to know."""
        budget = self.space.budget
        if budget is None or not self.space.known:
            return True
        if self.space.measured is not None:
            return self.need(setting) <= budget
        found = self._stages(setting)
        return all(peak(stage, setting, self._calibration).device_bytes <= budget for stage in found)

    def less(self, setting: Setting, need: int) -> bool:
        """Whether this needs less than what was seen not to fit; of equal estimates the smaller micro-batch does."""
        assert self.evidence is not None, "nothing was seen"
        return need < self._seen or (need == self._seen and setting.micro_batch < self.evidence.setting.micro_batch)

    def refusal(self, setting: Setting) -> str:
        """Why a setting does not fit, for people."""
        evidence, need = self.evidence, self.need(setting)
        if evidence is not None and not self.less(setting, need):
            return (
                f"micro-batch {evidence.setting.micro_batch} ran out of memory: measured peak"
                f" {human_bytes(evidence.measured_bytes)}, and this needs no less"
            )
        peak = f" with the measured peak {human_bytes(evidence.measured_bytes)}" if evidence is not None else ""
        return f"needs {least_bytes(need)}{peak} of {most_bytes(self.space.budget or 0)} usable"

    def stages(self, setting: Setting) -> tuple[StageMemory, ...]:
        """The memory of every stage with its calculation; none without a model or a device's memory."""
        if not self.checked:
            return ()
        every = self._peaks(setting)
        size = -(-len(every) // MOST_STAGES)
        runs = [every[start : start + size] for start in range(0, len(every), size)]
        return tuple(self._run(run, setting) for run in runs)

    def run(self, setting: Setting, first: int, last: int) -> StageMemory:
        """The fullest of a run of stages."""
        assert self.checked, "there is nothing to compare"
        return self._run(self._peaks(setting)[first : last + 1], setting)

    def _run(self, run: tuple[Peak, ...], setting: Setting) -> StageMemory:
        worst = max(run, key=lambda peak: (peak.device_bytes, -peak.number))
        found = self._stage(worst, setting)
        return found if len(run) == 1 else found.replace(stage=run[0].number, last_stage=run[-1].number)

    def _stage(self, peak: Peak, setting: Setting) -> StageMemory:
        estimate = explained(peak, setting, self._calibration).memory()
        if self.evidence is None or not self.evidence.corrects:
            return estimate
        actual = self._corrected(peak, setting)
        added = actual.allocated_bytes - peak.allocated_bytes
        return estimate.replace(
            other_bytes=estimate.other_bytes + added,
            total_bytes=actual.allocated_bytes,
            reserved_bytes=actual.device_bytes,
            arithmetic=(*estimate.arithmetic, self._correction(actual)),
        )

    def _correction(self, actual: Peak) -> str:
        assert self.evidence is not None, "nothing was measured"
        measured, estimated = self.evidence.ratio
        thousandths, outside = measured * 1000 // estimated, self.evidence.outside_bytes
        rest = f" but the {human_bytes(outside)} of the process itself" if outside else ""
        return (
            f"measured: peak {human_bytes(self.evidence.measured_bytes)} where"
            f" {human_bytes(self.evidence.estimated_bytes)} were estimated, so all of it{rest} x"
            f" {thousandths / 1000}: {human_bytes(actual.allocated_bytes)} in use,"
            f" {human_bytes(actual.device_bytes)} of the device"
        )

    def _corrected(self, peak: Peak, setting: Setting) -> Peak:
        if self.evidence is None or not self.evidence.corrects:
            return peak
        measured, estimated = self.evidence.ratio
        allocated = -(-peak.allocated_bytes * measured // estimated)
        return with_allocated(allocated, peak, setting, self._calibration.backends[setting.backend])

    def _fullest(self, setting: Setting) -> Peak:
        if self.space.measured is not None:
            return measured_fullest(self.space.measured, setting, self._calibration)
        return fullest(self._stages(setting), setting, self._calibration)

    def _stages(self, setting: Setting) -> tuple[Stage, ...]:
        """The stages among which the fullest is; kept for a while, since sharding asks for the same ones again."""
        same = (setting.layout, setting.micro_batch, setting.micro_batches, setting.schedule, setting.recompute)
        found = self._counted.get(same)
        if found is None:
            if len(self._counted) >= MOST_COUNTED:
                self._counted.clear()
            found = stages(setting, self._calibration.backends[setting.backend], decisive(setting))
            self._counted[same] = found
        return found

    def _peaks(self, setting: Setting) -> tuple[Peak, ...]:
        if self.space.measured is not None:
            return measured_peaks(self.space.measured, setting, self._calibration)
        return peaks(setting, self._calibration)
