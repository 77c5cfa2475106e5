"""Entry point of a rank: `python -m kuangchao_worker.rank ASSIGNMENT`. Started by the agent only."""

import contextlib
import logging
import signal
import sys
from pathlib import Path

from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import DRAINED_EXIT
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.channel import RankChannel, RankMessage
from kuangchao_worker.pod.ending import leave
from kuangchao_worker.rank.failure import FAILED_EXIT, describe, kind_of


class StopFlag:
    """Set by SIGTERM; the executor asks it after each step, since only all ranks together may stop."""

    def __init__(self) -> None:
        self._set = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self._set = True

    def __call__(self) -> bool:
        return self._set


def last_words(rank: int, step: int | None, error: BaseException) -> RankMessage:
    """What a rank that failed says, with its peak where it ran out of memory."""
    told = RankMessage(rank=rank, step=step, error=describe(error), error_kind=kind_of(error))
    if told.error_kind == Reason.OUT_OF_MEMORY:
        with contextlib.suppress(Exception):  # measuring may fail too, and must not hide why the rank did
            from kuangchao_worker.rank.memory import measured

            peak, limit = measured(error)
            return told.replace(peak_memory_bytes=peak, memory_limit_bytes=limit)
    return told


def main(path: str) -> int:
    """Run the rank; the exit code."""
    stop = StopFlag()  # before the slow imports: a signal that comes during them must not kill the rank
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    assignment = Assignment.read(Path(path))
    channel = RankChannel(assignment.monitor, assignment.rank)
    try:
        from kuangchao_worker.layers.execution.executor import Outcome
        from kuangchao_worker.rank.wiring import run_rank

        outcome = run_rank(assignment, channel, stop)
    except BaseException as error:
        # SystemExit and the like too: who ends the process, even with 0, has not finished the training. First comes the
        # word that counts: the task may have closed standard error, or taken logging away
        channel.reliable(last_words(assignment.rank, channel.step, error))
        with contextlib.suppress(Exception):
            logging.getLogger("kuangchao.rank").exception("rank %d failed", assignment.rank)
        return FAILED_EXIT
    return DRAINED_EXIT if outcome is Outcome.DRAINED else 0


if __name__ == "__main__":
    leave(main(sys.argv[1]))
