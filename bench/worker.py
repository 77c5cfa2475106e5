"""The worker: plans of every kind against torch by hand, the context, links of many ranks, memory. Ten minutes."""

from typing import Final

from bench import contextcost, footprint, groups, snapshotmemory
from bench.executor import RATIO, ROOT, compared, pairs
from bench.figures import Figure
from bench.layouts import Layout

RUNS: Final = ROOT / "bench" / "results" / "memory-runs.csv"
"""Where readings for `kuangchao calibrate` are written; not in git."""
BLOCK: Final = 15
"""Steps of a turn."""


def measure(quick: bool = False) -> list[Figure]:
    """All of it; what needs no runs comes first."""
    found = [*contextcost.figures(quick), *snapshotmemory.figures(quick), *groups.figures(quick)]
    count, runs = (2, 1) if quick else (6, 6)
    for layout in Layout:
        found += compared(layout.value, pairs("matrices", 128, BLOCK, count, runs, layout), RATIO, "worker")
    return [*found, *footprint.figures(quick, RUNS)]
