"""What runs inside a worker pod: the agent, the ranks, and the worker halves of topology, execution and state.

Has no rights of its own: everything it asks of the control plane goes through the gate with a mounted token. Must
never import kopf, kubernetes or anything of the operator.
"""

import atexit
import os
from functools import lru_cache
from typing import Final

from kuangchao_worker.pod.channel import SOCKET_VARIABLE, RankChannel, RankMessage

__version__: Final = "0.1.0"
__all__ = ["report"]


def report(*, step: int, total: int | None = None, **metrics: float) -> None:
    """Tell the agent how far a `command` job is; does nothing when the script runs without an agent.

    `total` is the number of steps of the whole run: the last step is delivered for certain, others may be dropped when
    they come fast. Only what rank 0 reports is shown to people; the steps of all ranks are watched for hangs.
    """
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return
    rank = int(os.environ.get("RANK", "0"))
    channel = _channel(path, rank)
    texts = {name: f"{value:.10g}" for name, value in metrics.items()}
    if total is not None:
        texts["totalSteps"] = str(total)
    if total is not None and step >= total:
        channel.reliable(RankMessage(rank=rank, step=step, section="train", metrics=texts))
    else:
        channel.progress(step, "train", texts)


@lru_cache
def _channel(path: str, rank: int) -> RankChannel:
    """Kept, since it remembers what it said last."""
    channel = RankChannel(path, rank)
    atexit.register(channel.close)
    return channel
