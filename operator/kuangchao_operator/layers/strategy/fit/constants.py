"""Figures of a framework that measured runs may change, each with what it may physically be. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from kuangchao_contracts.plan import Recompute
from kuangchao_operator.layers.strategy.fit.runs import Figure, Run
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration
from kuangchao_operator.layers.strategy.footprint.peaks import allocator_kind

GIB = 2**30


class Constant(NamedTuple):
    """One figure. `read` and `write` are in its own unit."""

    name: str
    lower: int
    upper: int
    scale: int
    """What one unit of it is divided by, so that a change by 1 matters about as much for every figure."""
    read: Callable[[Backend], int]
    write: Callable[[Backend, int], Backend]
    concerns: Callable[[Run], bool]
    """Whether a run can depend on it at all."""


def constants_of(runs: tuple[Run, ...], backend: Backend) -> tuple[Constant, ...]:
    """Figures that runs of one framework could depend on, in the order in which they are reported."""
    modes = {run.setting.recompute for run in runs}
    found = [_plain("activationPermille", "activation_permille", 500, 4000, 1000)]
    if Recompute.FULL in modes:
        found.append(_by_mode(Recompute.FULL))
    if {Recompute.NONE, Recompute.SELECTIVE} <= modes:
        found.append(_by_mode(Recompute.SELECTIVE))
    found += [_logits(loss) for loss in sorted({run.setting.loss.value for run in runs})]
    found += [_reserved(kind, backend) for kind in sorted({allocator_kind(run.setting, backend) for run in runs})]
    found.append(_plain("workspaceBytes", "workspace_bytes", 0, 8 * GIB, GIB))
    outside = _plain("runtimeBytes", "runtime_bytes", 0, 8 * GIB, GIB)
    found.append(outside._replace(concerns=lambda run: run.figure is Figure.DEVICE))
    return tuple(found)


def changed(calibration: Calibration, backend: str, constants: tuple[Constant, ...], values: list[int]) -> Calibration:
    """The calibration with other values of some figures."""
    figures = calibration.backends[backend]
    for constant, value in zip(constants, values, strict=True):
        figures = constant.write(figures, value)
    return calibration.replace(backends={**calibration.backends, backend: figures})


def _plain(name: str, field: str, lower: int, upper: int, scale: int) -> Constant:
    def read(backend: Backend) -> int:
        value: int = getattr(backend, field)
        return value

    def write(backend: Backend, value: int) -> Backend:
        return backend.replace(**{field: value})

    return Constant(name, lower, upper, scale, read, write, lambda _: True)


def _by_mode(mode: Recompute) -> Constant:
    """What a kind of recomputation keeps, relative to fused kernels."""

    def read(backend: Backend) -> int:
        usual = 1000 if mode is Recompute.FULL else backend.activation_permille
        return backend.recompute_permille.get(mode, usual)

    def write(backend: Backend, value: int) -> Backend:
        return backend.replace(recompute_permille={**backend.recompute_permille, mode: value})

    name = f"recomputePermille.{mode.value}"
    return Constant(name, 500, 8000, 1000, read, write, lambda run: run.setting.recompute is mode)


def _logits(loss: str) -> Constant:
    def read(backend: Backend) -> int:
        return backend.logit_bytes[loss]

    def write(backend: Backend, value: int) -> Backend:
        return backend.replace(logit_bytes={**backend.logit_bytes, loss: value})

    return Constant(f"logitBytes.{loss}", 2, 32, 10, read, write, lambda run: run.setting.loss.value == loss)


def _reserved(kind: str, base: Backend) -> Constant:
    def read(backend: Backend) -> int:
        return backend.reserved_permille[kind]

    def write(backend: Backend, value: int) -> Backend:
        return backend.replace(reserved_permille={**backend.reserved_permille, kind: value})

    def concerns(run: Run) -> bool:
        return run.figure is not Figure.ALLOCATED and allocator_kind(run.setting, base) == kind

    return Constant(f"reservedPermille.{kind}", 1000, 3000, 1000, read, write, concerns)
