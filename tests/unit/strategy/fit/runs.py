"""Runs that were measured on a device whose true figures are known."""

from dataclasses import replace
from typing import Any

from tests.unit.strategy.footprint.settings import CALIBRATION, LLAMA_8B, setting

from kuangchao_contracts.plan import Recompute, Sharding
from kuangchao_operator.layers.strategy.fit.runs import Figure, Run, estimate
from kuangchao_operator.layers.strategy.footprint.calibration import Backend, Calibration
from kuangchao_operator.layers.strategy.footprint.layout import Layout

BACKEND = "torchtitan"
GIB = 2**30


def truth(**changes: Any) -> Calibration:
    """The shipped calibration with other figures for BACKEND."""
    figures: Backend = CALIBRATION.backends[BACKEND].replace(**changes)
    return CALIBRATION.replace(backends={**CALIBRATION.backends, BACKEND: figures})


def unmeasured(name: str, figure: Figure = Figure.ALLOCATED, layers: int = 16, **changes: Any) -> Run:
    """A run on eight devices under full sharding."""
    base = {"backend": BACKEND, "layout": Layout(data=8), "sharding": Sharding.FULL, **changes}
    return Run(name, f"{layers} layers", setting(LLAMA_8B.replace(layers=layers), **base), 1, figure)


def measured(runs: list[Run], at: Calibration, noise: tuple[int, ...] = (0,)) -> tuple[Run, ...]:
    """What `at` says of the runs, off by `noise` millionths in turn."""
    return tuple(
        replace(run, measured=estimate(run, at) * (1_000_000 + noise[number % len(noise)]) // 1_000_000)
        for number, run in enumerate(runs)
    )


def grid() -> list[Run]:
    """Runs that tell activations, logits, allocator, workspace and runtime apart."""
    found = []
    for layers in (2, 8, 32):
        for batch in (1, 4):
            found.append(unmeasured(f"{layers}-{batch}", layers=layers, micro_batch=batch))
            found.append(
                unmeasured(f"{layers}-{batch}-full", layers=layers, micro_batch=batch, recompute=Recompute.FULL)
            )
        found.append(unmeasured(f"{layers}-reserved", Figure.RESERVED, layers=layers))
        found.append(unmeasured(f"{layers}-device", Figure.DEVICE, layers=layers))
    return found
