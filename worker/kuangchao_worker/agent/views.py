"""What the agent knows of each of its ranks, put together from process and channel. Values and pure functions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import DRAINED_EXIT, STOPPED, RankReport, RankState
from kuangchao_worker.agent.memory import PodMemory
from kuangchao_worker.agent.ranks import RankProcess
from kuangchao_worker.pod.channel import RankMessage
from kuangchao_worker.pod.memory import UNKNOWN, Figures, on_device, ran_out, refused

MAX_METRICS: Final = 32
MAX_NAME: Final = 64


@dataclass(slots=True)
class RankView:
    """One rank, newest knowledge."""

    rank: int
    state: RankState = RankState.STARTING
    step: int = 0
    total: int | None = None
    section: str = "init"
    exit_code: int | None = None
    error: str | None = None
    error_kind: str | None = None
    memory: Figures = UNKNOWN
    """Of a rank that ran out of memory."""
    metrics: dict[str, str] = field(default_factory=dict)
    oplog: tuple[int, str] = (0, "")
    lease_overdue: bool = False
    lease_overdue_seconds: int = 0

    def hear(self, message: RankMessage) -> None:
        """Take in what the rank said; a failed save is the keeper's business and no failure of the rank."""
        if message.step is not None:
            self.step = max(self.step, message.step)
            self.state = RankState.RUNNING
        self.section = message.section or self.section
        self.total = message.total or self.total
        for name, text in message.metrics.items():
            if len(name) <= MAX_NAME:
                # what is told last stands last
                self.metrics.pop(name, None)
                self.metrics[name] = text
        # any process of the pod may write to the socket: names without end must not fill the agent's memory
        self.metrics = merge_metrics(self.metrics)
        if message.error is not None and message.save_failed is None:
            self.error, self.error_kind = message.error, message.error_kind
            self.memory = Figures(message.peak_memory_bytes, message.memory_limit_bytes)
        if message.oplog_count is not None:
            self.oplog = (message.oplog_count, message.oplog_head or "")
        if message.lease_overdue is not None:
            self.lease_overdue = message.lease_overdue
            self.lease_overdue_seconds = message.lease_overdue_seconds or self.lease_overdue_seconds

    def end(self, process: RankProcess, pod: PodMemory) -> None:
        """Take in how the process ended; what the rank said itself is better than what is read from its output."""
        self.state, self.exit_code = RankState.EXITED, process.exit_code
        code, killed = process.exit_code or 0, pod.killed(process.exit_code)
        if self.memory.peak is not None and self.memory.limit is None:
            self.memory = self.memory._replace(limit=pod.limit)
        if code == 0 or self.error is not None:
            return
        if killed is not None:
            self.error_kind, self.memory = Reason.OUT_OF_MEMORY.value, killed
            self.error = "killed by the kernel: the memory limit of the pod was reached"
            return
        if code < 0 or code == DRAINED_EXIT:
            # a signal says nothing about the program: whoever judges must not take it for an error of the user
            return
        raised, tail = process.last_words()
        silent = f"ended with exit code {code} and nothing on standard error"
        self.error_kind, self.error = raised or "ExitCode", tail or silent
        if ran_out(self.error_kind, tail):
            self._ran_out(tail, process.peak_bytes)

    def _ran_out(self, tail: str, peak: int | None) -> None:
        """A script that ran out of memory: figures of its device as its words have them, or of its process."""
        self.error_kind, self.memory = Reason.OUT_OF_MEMORY.value, on_device(tail)
        if self.memory == UNKNOWN and peak is not None:
            self.memory = Figures(peak + refused(tail))

    def require_last_word(self) -> None:
        """A task's rank says that it has done its part before it ends; code of the task can end the process before."""
        if self.exit_code == 0 and self.oplog[0] == 0:
            self.refuse(
                Reason.USER_ERROR.value, "code of the task ended the process with 0 before the training was over"
            )

    def refuse(self, kind: str, message: str) -> None:
        """The rank was never started."""
        self.state, self.exit_code, self.error_kind, self.error = RankState.EXITED, 1, kind[:64], message[:1024]

    def report(self, *, held: bool, stopped: bool = False) -> RankReport:
        """What is told to the control plane. `held`: its last checkpoint is still on its way into the ledger.

        `stopped`: its process runs no more, which it cannot say itself.
        """
        if held and self.exit_code in (0, DRAINED_EXIT):
            return RankReport(rank=self.rank, state=RankState.RUNNING, step=self.step, section="commit")
        return RankReport(
            rank=self.rank,
            state=self.state,
            step=self.step,
            total_steps=self.total,
            section=STOPPED if stopped and self.exit_code is None else self.section,
            exit_code=self.exit_code,
            error=self.error,
            error_kind=self.error_kind,
            peak_memory_bytes=self.memory.peak,
            memory_limit_bytes=self.memory.limit,
        )


def lease_overdue_seconds(views: Iterable[RankView]) -> int | None:
    """The longest time that one of these ranks has acted on expired leases; None: none did."""
    return max((max(v.lease_overdue_seconds, int(v.lease_overdue)) for v in views), default=0) or None


def merge_metrics(*parts: dict[str, str]) -> dict[str, str]:
    """Metrics of several sources, later ones first in right, as many as a heartbeat may hold."""
    merged: dict[str, str] = {}
    for part in parts:
        merged |= part
    return dict(list(merged.items())[-MAX_METRICS:])
