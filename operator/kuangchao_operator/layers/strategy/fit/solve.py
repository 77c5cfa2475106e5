"""Bounded robust least squares: Levenberg-Marquardt with Huber's weights (Huber 1964; Marquardt 1963). Pure.

Only + - * / and comparisons of floats, so that equal runs give equal figures on every machine.
"""

from collections.abc import Callable, Sequence

Vector = list[float]
Residuals = Callable[[Vector], Vector]

HUBER = 0.05
"""Relative error from which on a run counts by its error, no longer by its square."""
STEP = 0.01
"""For derivatives, in scaled units: 1 % of a factor, 10 MiB of a fixed part, a tenth of a byte of a logit."""
_ROUNDS = 40
_FINE = 5e-4
"""A step smaller than this, in scaled units, changes no figure that is written down."""


def minimise(residuals: Residuals, start: Vector, lower: Vector, upper: Vector) -> Vector:
    """Where the robust sum of squares is least within the bounds, from `start`; all in scaled units."""
    place, damping = list(start), 1e-3
    errors = residuals(place)
    for _ in range(_ROUNDS):
        slopes = jacobian(residuals, place, errors, upper)
        step = _step(slopes, errors, place, lower, upper, damping)
        there = [min(max(x + d, lo), hi) for x, d, lo, hi in zip(place, step, lower, upper, strict=True)]
        if all(abs(new - old) < _FINE for new, old in zip(there, place, strict=True)):
            break
        found = residuals(there)
        if robust(found) < robust(errors):
            place, errors, damping = there, found, damping / 10
        else:
            damping *= 10
    return place


def robust(errors: Sequence[float]) -> float:
    """Huber's sum: squares up to HUBER, straight beyond."""
    return sum(e * e if abs(e) <= HUBER else HUBER * (2 * abs(e) - HUBER) for e in errors)


def jacobian(residuals: Residuals, place: Vector, errors: Vector, upper: Vector) -> list[Vector]:
    """Derivatives by forward differences, backward ones at an upper bound: one column for each variable."""
    columns = []
    for number, x in enumerate(place):
        step = STEP if x + STEP <= upper[number] else -STEP
        moved = residuals([*place[:number], x + step, *place[number + 1 :]])
        columns.append([(after - before) / step for after, before in zip(moved, errors, strict=True)])
    return columns


def dot(one: Vector, other: Vector) -> float:
    """Scalar product."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def unexplained(column: Vector, others: Sequence[Vector]) -> float:
    """Squared length of what is left of a column when the others have explained what they can (Gram-Schmidt)."""
    axes: list[Vector] = []
    for other in others:
        rest = _minus_projections(other, axes)
        if dot(rest, rest) > 1e-12 * dot(other, other):
            axes.append(rest)
    rest = _minus_projections(column, axes)
    return dot(rest, rest)


def _minus_projections(column: Vector, axes: Sequence[Vector]) -> Vector:
    rest = list(column)
    for axis in axes:
        share = dot(rest, axis) / dot(axis, axis)
        rest = [r - share * a for r, a in zip(rest, axis, strict=True)]
    return rest


def _step(slopes: list[Vector], errors: Vector, place: Vector, lower: Vector, upper: Vector, damping: float) -> Vector:
    weights = [1.0 if abs(e) <= HUBER else HUBER / abs(e) for e in errors]
    pull = [-sum(w * s * e for w, s, e in zip(weights, column, errors, strict=True)) for column in slopes]
    free = [
        n for n, p in enumerate(pull) if not (p > 0 and place[n] >= upper[n]) and not (p < 0 and place[n] <= lower[n])
    ]
    normal = [
        [sum(w * a * b for w, a, b in zip(weights, slopes[i], slopes[j], strict=True)) for j in free] for i in free
    ]
    for n in range(len(free)):
        normal[n][n] += damping * (normal[n][n] + 1e-9)
    found = solve(normal, [pull[n] for n in free])
    step = [0.0] * len(place)
    for n, value in zip(free, found, strict=True):
        step[n] = value
    return step


def solve(matrix: list[Vector], right: Vector) -> Vector:
    """A linear system by elimination with pivots; 0 for variables that no equation holds."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for n in range(size):
        best = max(range(n, size), key=lambda r: abs(rows[r][n]))
        rows[n], rows[best] = rows[best], rows[n]
        if rows[n][n] == 0:
            continue
        for r in range(n + 1, size):
            factor = rows[r][n] / rows[n][n]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[n], strict=True)]
    found = [0.0] * size
    for n in reversed(range(size)):
        rest = rows[n][size] - sum(rows[n][c] * found[c] for c in range(n + 1, size))
        found[n] = rest / rows[n][n] if rows[n][n] else 0.0
    return found
