"""What the operation log of a rank costs per step, as part of the suite `authority`.

The log is set against what any record of a call needs, the hash of the request, by turns, so that both meet one noise.
"""

import gc
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import Bound, Figure
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.oplogcheck import verify_oplog
from kuangchao_contracts.oplogfile import LogFile, parts
from kuangchao_contracts.ports.state import SubmitGradients

OP, RESOURCE, SUBJECT = "state.submit_gradients", "bench/jobs/digits", "rank:bench/digits/digits-0-0"
WITH_FILE = 20.0
"""Microseconds of a step that the log may take: a thousandth of a short step."""


def figures(quick: bool = False) -> list[Figure]:
    """The log with its file, without, and how fast it is read back."""
    turns, calls = (3, 2_000) if quick else (15, 20_000)
    with tempfile.TemporaryDirectory() as folder, OperationLog() as kept, OperationLog() as bare:
        kept.keep_in(LogFile(Path(folder), 1, 0))
        bare.keep_in(None)
        took = _by_turns((lambda: _step(kept), lambda: _step(bare), _hash), turns, calls)
        with_file, without, hashed = (statistics.median(part) for part in took)
        kept.close()
        start = time.perf_counter()
        found = verify_oplog(parts(Path(folder), 1, 0), [(kept.count, kept.head)])
        read = found.pinned / (time.perf_counter() - start)
    return [
        Figure("authority", "operation log, with its file", round(with_file, 2), "us/step", Bound.AT_MOST, WITH_FILE),
        Figure("authority", "operation log, head and count only", round(without, 2), "us/step"),
        Figure("authority", "the same against hashing the request", round(without / hashed, 2), "times"),
        Figure("authority", "operation log read back and checked", round(read), "lines/s", Bound.AT_LEAST),
    ]


def _by_turns(work: tuple[Callable[[], None], ...], turns: int, calls: int) -> list[list[float]]:
    """Microseconds per call of each piece of work, one turn after the other."""
    took: list[list[float]] = [[] for _ in work]
    gc.collect()
    for _ in range(turns):
        for part, run in zip(took, work, strict=True):
            start = time.perf_counter_ns()
            for _ in range(calls):
                run()
            part.append((time.perf_counter_ns() - start) / 1e3 / calls)
    return took


def _step(log: OperationLog) -> None:
    log.step(OP, RESOURCE, SUBJECT, SubmitGradients(step_id=1))


def _hash() -> None:
    """The least that a record of a call must do: build the request, write it as JSON, hash that."""
    request = SubmitGradients(step_id=1)
    hashlib.sha256(json.dumps({"step_id": request.step_id}).encode()).hexdigest()
