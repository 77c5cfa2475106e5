"""How the jobs of a pool train, for Prometheus: sums and worst values of what jobs say of themselves in status. Pure.

No figure is by job: names of jobs have no bound. What a job says is a stranger's text, so a text that is no figure says
nothing.
"""

import math
from collections.abc import Iterable
from typing import Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.reasons import Phase

SUMMED: Final = {
    "samplesPerSecond": ("kuangchao_pool_samples_per_second", "Samples that the running jobs of a pool train on"),
    "tokensPerSecond": ("kuangchao_pool_tokens_per_second", "Tokens that the running jobs of a pool train on"),
}
WORST: Final = {
    "linkLatencySeconds": (
        "kuangchao_pool_link_latency_seconds",
        "Round trip over the slowest link between pods of the running jobs of a pool",
    ),
    "linkLoss": (
        "kuangchao_pool_link_loss",
        "Largest fraction of pings lost between pods of the running jobs of a pool",
    ),
}
MOST: Final = 1e15
"""What is larger is no rate of any machine."""


def rates(jobs: Iterable[TrainingJob]) -> dict[str, float]:
    """Sums over the jobs that run, and the worst of them, by name of the figure in status."""
    told = [
        job.status.progress.metrics
        for job in jobs
        if job.status is not None and job.status.phase is Phase.RUNNING and job.status.progress is not None
    ]
    said = {name: [_figure(metrics.get(name, "0")) for metrics in told] for name in (*SUMMED, *WORST)}
    return {name: sum(figures) if name in SUMMED else max(figures, default=0.0) for name, figures in said.items()}


def _figure(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 <= value <= MOST else 0.0
