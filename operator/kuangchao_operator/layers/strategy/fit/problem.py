"""Measured runs of one framework as a least-squares problem over scaled figures. Pure."""

from math import floor

from kuangchao_operator.layers.strategy.fit.constants import Constant, changed
from kuangchao_operator.layers.strategy.fit.runs import Run, estimate
from kuangchao_operator.layers.strategy.fit.solve import Vector, minimise, robust
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration

COARSE = 100
"""Figures with a smaller scale are so coarse as whole numbers that estimates between two of them are interpolated."""


class Problem:
    """Relative errors as a function of the figures. Remembers what it has estimated."""

    def __init__(self, runs: tuple[Run, ...], base: Calibration, backend: str, constants: tuple[Constant, ...]) -> None:
        self.runs, self._base, self._backend, self.constants = runs, base, backend, constants
        self._own = [[n for n, constant in enumerate(constants) if constant.concerns(run)] for run in runs]
        self._known: dict[tuple[int, ...], int] = {}

    @property
    def start(self) -> Vector:
        """The figures of the base."""
        figures = self._base.backends[self._backend]
        return [constant.read(figures) / constant.scale for constant in self.constants]

    def residuals(self, place: Vector) -> Vector:
        """(estimate - measured) / measured of each run."""
        values = [x * constant.scale for x, constant in zip(place, self.constants, strict=True)]
        low = [floor(v) if c.scale < COARSE else floor(v + 0.5) for v, c in zip(values, self.constants, strict=True)]
        high = [-floor(-v) if c.scale < COARSE else n for v, c, n in zip(values, self.constants, low, strict=True)]
        below, above = self._estimates(low), self._estimates(high)
        found = []
        for number, run in enumerate(self.runs):
            share = sum(values[n] - low[n] for n in self._own[number] if low[n] != high[n])
            size = below[number] + share * (above[number] - below[number])
            found.append((size - run.measured) / run.measured)
        return found

    def fitted(self, start: Vector) -> list[int]:
        """Whole figures that fit best, searched from `start`; coarse ones on either side of the smooth optimum."""
        lower = [constant.lower / constant.scale for constant in self.constants]
        upper = [constant.upper / constant.scale for constant in self.constants]
        place = minimise(self.residuals, start, lower, upper)
        for number, constant in enumerate(self.constants):
            if constant.scale < COARSE:
                place, lower, upper = self._settled(number, place, lower, upper)
        return [floor(x * c.scale + 0.5) for x, c in zip(place, self.constants, strict=True)]

    def _settled(self, number: int, place: Vector, lower: Vector, upper: Vector) -> tuple[Vector, Vector, Vector]:
        """One coarse figure held at the better of its two neighbours, the others fitted again around it."""
        scale = self.constants[number].scale
        tried = []
        for value in sorted({floor(place[number] * scale), -floor(-place[number] * scale)}):
            held = [_with(vector, number, value / scale) for vector in (place, lower, upper)]
            found = minimise(self.residuals, *held)
            tried.append((robust(self.residuals(found)), value, found, held[1], held[2]))
        _, _, *best = min(tried, key=lambda one: one[:2])
        return best[0], best[1], best[2]

    def _estimates(self, values: list[int]) -> list[int]:
        keys = [(number, *(values[n] for n in own)) for number, own in enumerate(self._own)]
        fresh = [key for key in keys if key not in self._known]
        if fresh:
            calibration = changed(self._base, self._backend, self.constants, values)
            self._known |= {key: estimate(self.runs[key[0]], calibration) for key in fresh}
        return [self._known[key] for key in keys]


def _with(vector: Vector, number: int, value: float) -> Vector:
    return [*vector[:number], value, *vector[number + 1 :]]
