"""How the jobs of a pool train, for Prometheus: sums and worst values of what jobs say of themselves in status. Pure.

No figure is by job: names of jobs have no bound. What a job says is a stranger's text, so a text that is no figure says
nothing.
"""

import math
from collections.abc import Iterable, Iterator
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
    """Sums over the jobs that run, and the worst of them, by name of the figure in status.

    A worst value that no job measures is left out: 0 would say that a link is perfect.
    """
    told = [
        job.status.progress.metrics
        for job in jobs
        if job.status is not None and job.status.phase is Phase.RUNNING and job.status.progress is not None
    ]
    said = {name: list(_figures(metrics[name] for metrics in told if name in metrics)) for name in (*SUMMED, *WORST)}
    sums = {name: sum(said[name]) for name in SUMMED}
    return sums | {name: max(said[name]) for name in WORST if said[name]}


def _figures(texts: Iterable[str]) -> Iterator[float]:
    for text in texts:
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value) and 0 <= value <= MOST:
            yield value
