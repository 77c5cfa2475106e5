"""One attempt in one pod: prepare, start ranks, report each second, obey. Ends with what to do next."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kuangchao_contracts import oplogfile
from kuangchao_contracts.checkpoint import CheckpointRef
from kuangchao_contracts.errors import CapabilityError, KuangchaoError, StorageError, UnavailableError
from kuangchao_contracts.names import job_resource
from kuangchao_contracts.run import (
    DRAINED_EXIT,
    Directive,
    FeedReply,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LaunchSpec,
    RankReport,
)
from kuangchao_worker.agent import volume
from kuangchao_worker.agent.checkpoints import CheckpointKeeper
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.agent.environment import Place, cold_rank, places, script, torchrun_environment
from kuangchao_worker.agent.forge import ANSWER_SECONDS, Forge
from kuangchao_worker.agent.memory import PodMemory
from kuangchao_worker.agent.monitor import Monitor
from kuangchao_worker.agent.notes import NoteQueue
from kuangchao_worker.agent.pings import Pings
from kuangchao_worker.agent.ranks import RankProcess, Ranks
from kuangchao_worker.agent.settings import Oplog, Settings
from kuangchao_worker.agent.views import RankView, lease_overdue_seconds, merge_metrics
from kuangchao_worker.agent.vigil import Vigil
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.channel import RankMessage
from kuangchao_worker.pod.defaults import RANK_DEFAULTS

DRAIN_MARGIN: Final = 5.0
"""Seconds of the grace period that are kept for the last commit and the last report."""
SCRIPT_SECONDS: Final = 30.0
"""Between SIGTERM and SIGKILL of what is left of a script's ranks, as torchrun has it."""
log = logging.getLogger("kuangchao.agent")


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Join again, for this attempt or a later one."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Exit:
    """End the pod with this code."""

    code: int


class Session:
    """The attempt that the agent has joined."""

    def __init__(
        self,
        settings: Settings,
        client: GateClient,
        join: JoinRequest,
        reply: JoinReply,
        launch: LaunchSpec,
        environment: Mapping[str, str],
        forge: Forge,
        notes: NoteQueue,
        vigil: Vigil,
    ) -> None:
        self._notes, self._vigil = notes, vigil
        self._settings, self._client, self._join, self._reply, self._launch = settings, client, join, reply, launch
        self._environment = environment
        self._resource = job_resource(launch.namespace, launch.job)
        self._places = places(launch.plan, settings.pod_index)
        self.views = {place.rank: RankView(place.rank) for place in self._places}
        self._ranks = Ranks(self._on_exit)
        self._memory = PodMemory.here(len(self._places))
        self._wake = asyncio.Event()
        forge.on_end = self._ranks.on_end
        self._forge = forge
        self._spawning: asyncio.Future[None] | None = None
        self._over_already = False
        self._draining = False
        self._drain_deadline = 0.0
        self._drain_monitor: Callable[[], None] = lambda: None
        self._acknowledged = False
        self._keeper: CheckpointKeeper | None = None
        if launch.checkpoint_path is not None and launch.command is None and settings.pod_index == 0:
            base = settings.checkpoints / launch.checkpoint_path
            self._keeper = CheckpointKeeper(client, launch, reply.attempt, base)
        self._pings = Pings(settings.pod_index, launch.plan.pods, reply)

    async def run(self) -> Rejoin | Exit:
        """Run the attempt to its end in this pod; leaves no process behind."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._ranks.on_child)
        # a number in the name keeps ranks of an older attempt from being heard
        monitor = Monitor(self._settings.run_directory / f"m{self._reply.attempt}.sock", self._on_message)
        self._drain_monitor = monitor.drain
        start = asyncio.create_task(self._start(monitor.path), name="start ranks")
        pings = asyncio.create_task(self._pings.run(), name="ping other pods")
        try:
            return await self._report_until_over()
        finally:
            self._over_already = True
            pings.cancel()
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await start
            await asyncio.wait([pings])
            if self._spawning is not None:
                await asyncio.wait([self._spawning], timeout=ANSWER_SECONDS)
            await self._ranks.end(self._grace())
            if self._keeper is not None:
                await self._keeper.close()
            monitor.close()
            loop.remove_signal_handler(signal.SIGCHLD)

    def drain(self) -> None:
        """SIGTERM: have the ranks save and end, then end the pod."""
        if not self._draining:
            self._draining = True
            self._drain_deadline = asyncio.get_running_loop().time() + max(
                1.0, self._settings.grace_seconds - DRAIN_MARGIN
            )
            self._ranks.signal(signal.SIGTERM)
            self._wake.set()

    def reports(self) -> list[RankReport]:
        """What is known of every rank of this pod."""
        held = self._keeper is not None and self._keeper.busy
        stopped = self._ranks.stopped()
        return [view.report(held=held, stopped=view.rank in stopped) for view in self.views.values()]

    def _grace(self) -> float:
        """Seconds that ranks have to end by themselves, where they were not told to yet: a script may save then.

        Ranks of a task save what they agree on, and wait for the failed one in vain.
        """
        if self._launch.command is None or self._draining:
            return 0.0
        return min(SCRIPT_SECONDS, self._settings.grace_seconds - DRAIN_MARGIN)

    # ---- start

    async def _start(self, monitor: Path) -> None:
        try:
            restore = await self._prepare()
        except (KuangchaoError, OSError) as error:
            log.exception("nothing is started")
            for view in self.views.values():
                view.refuse(error.code if isinstance(error, KuangchaoError) else StorageError.code, str(error))
            self._wake.set()
            return
        if self._draining:
            return
        # a fork that is asked for happens: it must be known before the ranks are ended, so it is not cancelled
        self._spawning = asyncio.ensure_future(self._spawn(monitor, restore))
        await asyncio.shield(self._spawning)

    async def _spawn(self, monitor: Path, restore: CheckpointRef | None) -> None:
        for place in self._places:
            if self._over_already or self._draining:
                return
            if self._launch.command is None:
                await self._start_ours(place, self._assign(place, monitor, restore))
            else:
                environment = torchrun_environment(
                    self._environment, place, self._reply, self._launch, str(monitor), str(self._script_directory())
                )
                self._ranks.start_cold(place.rank, script(self._launch.command, environment), environment)
        if self._draining:
            self._ranks.signal(signal.SIGTERM)

    async def _start_ours(self, place: Place, assignment: Path) -> None:
        environment = {**RANK_DEFAULTS, **self._environment}
        try:
            pid, output = await self._forge.rank(assignment, place.rank, environment)
        except UnavailableError as error:
            log.warning("rank %d is started cold: %s", place.rank, error)
            self._ranks.start_cold(place.rank, cold_rank(str(assignment)), environment)
            return
        self._ranks.adopt(place.rank, pid, output)
        code = self._forge.ended.get(pid)
        if code is not None:
            self._ranks.on_end(pid, code)

    async def _prepare(self) -> CheckpointRef | None:
        """What only pod 0 does before its ranks start: see to the checkpoint directory, and choose what to restore."""
        if self._keeper is not None:
            return await self._keeper.prepare(self._reply.restore)
        if self._launch.command is not None and self._settings.pod_index == 0 and self._launch.checkpoint_path:
            # what a script keeps there is its own business, but not the directory of another job
            await asyncio.to_thread(volume.claim, self._script_directory(), self._launch)
        return None

    def _assign(self, place: Place, monitor: Path, restore: CheckpointRef | None) -> Path:
        """Write down what a rank of ours has to do; the file."""
        settings, reply, launch = self._settings, self._reply, self._launch
        base = settings.checkpoints / launch.checkpoint_path if launch.checkpoint_path is not None else None
        assignment = Assignment.model_validate(
            {
                "launch": launch,
                "attempt": reply.attempt,
                "rank": place.rank,
                "local_rank": place.local_rank,
                "master_host": reply.master_host,
                "master_port": reply.master_port,
                "store_prefix": reply.store_prefix,
                "monitor": str(monitor),
                "token_directory": str(settings.token_directory),
                "trust_directory": str(settings.trust_directory),
                "run_directory": str(settings.run_directory),
                "checkpoint_directory": str(base) if base is not None else None,
                "oplog_directory": self._oplog_directory(base),
                "lease_grace_seconds": settings.lease_grace_seconds,
                "restore": restore,
            }
        )
        path = settings.run_directory / f"rank-{place.rank}.json"
        path.write_bytes(assignment.canonical())
        return path

    def _oplog_directory(self, base: Path | None) -> str | None:
        """Where the operation logs of our ranks lie: with the checkpoints, which outlive the pod."""
        if self._settings.oplog is Oplog.OFF or (base is None and self._settings.oplog is Oplog.VOLUME):
            return None
        return str((base or self._settings.run_directory) / oplogfile.DIRECTORY)

    def _script_directory(self) -> Path:
        """Where a `command` job may keep checkpoints of its own: the volume if it has one, else scratch space."""
        path = self._launch.checkpoint_path
        directory = self._settings.checkpoints / path if path is not None else self._settings.run_directory / "scratch"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    # ---- what ranks say and how they end

    def _on_message(self, message: RankMessage) -> None:
        view = self.views.get(message.rank)
        if view is None:
            return
        was_overdue = view.lease_overdue
        view.hear(message)
        if view.lease_overdue is not was_overdue:
            words = "has a valid lease again" if was_overdue else "goes on without a valid lease"
            log.warning("LeaseOverdue: rank %d %s", view.rank, words)
        for note in message.notes:
            # a rank speaks for itself: for a note on another one the control plane would refuse the whole heartbeat
            if (note.rank, note.attempt) == (message.rank, self._reply.attempt):
                self._notes.add(note)
                self._wake.set()
        if self._keeper is not None and message.saved is not None:
            self._keeper.saved(Path(message.saved))
        if self._keeper is not None and message.save_failed is not None:
            self._keeper.failed(Path(message.save_failed), message.error or "")

    def _on_exit(self, process: RankProcess) -> None:
        self._drain_monitor()
        view = self.views[process.rank]
        view.end(process, self._memory)
        if self._launch.command is None:
            view.require_last_word()
        self._acknowledged = False
        log.info("rank %d ended with %s", process.rank, process.exit_code)
        self._wake.set()

    # ---- reports and orders

    async def _report_until_over(self) -> Rejoin | Exit:
        loop = asyncio.get_running_loop()
        contact = loop.time()
        while True:
            answer = await self._beat()
            if answer is not None:
                contact = loop.time()
                order = self._obey(answer)
                if order is not None:
                    return order
            over = self._over(loop.time() - contact)
            if over is not None:
                return over
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._settings.heartbeat_seconds)
            self._wake.clear()

    async def _beat(self) -> HeartbeatReply | FeedReply | None:
        """Report; the answer, or None when the control plane is out of reach."""
        request = self._heartbeat()
        ended = all(report.exit_code is not None for report in request.ranks)
        try:
            answer = await self._client.call("execution.heartbeat", self._resource, request, HeartbeatReply)
        except CapabilityError:
            # a new attempt, a closed job, or just tokens that are about to be renewed: the feed knows which
            return await self._vigil.feed(self._resource)
        except KuangchaoError as error:
            log.info("heartbeat: %s", error)
            return None
        self._notes.stored(answer.notes_stored)
        self._acknowledged = ended and self._notes.empty
        return answer

    def _heartbeat(self) -> HeartbeatRequest:
        first = self.views.get(0)
        kept = self._keeper.metrics if self._keeper else {}
        metrics = merge_metrics(first.metrics, kept, self._pings.metrics) if first is not None else {}
        count, head = first.oplog if first is not None else (0, "")
        return HeartbeatRequest(
            join=self._join,
            ranks=tuple(self.reports()),
            metrics=metrics,
            oplog_count=count,
            oplog_head=head,
            notes=self._notes.batch(),
            lease_overdue_seconds=lease_overdue_seconds(self.views.values()),
        )

    def _obey(self, answer: HeartbeatReply | FeedReply) -> Rejoin | Exit | None:
        if answer.attempt > self._reply.attempt:
            log.info("attempt %d is over, %d has begun", self._reply.attempt, answer.attempt)
            return self._rejoin(answer.attempt)
        if isinstance(answer, FeedReply):
            # attempt 0: the job is finished, suspended or deleted, and nothing of it may run
            return Exit(self._code()) if answer.attempt == 0 else None
        if answer.directive is Directive.REJOIN:
            return self._rejoin(self._reply.attempt + 1)
        if answer.directive is Directive.STOP:
            self.drain()
        return None

    def _rejoin(self, attempt: int) -> Rejoin | Exit:
        """Go on with the next attempt, unless this pod is leaving: nobody would commit what its ranks still save."""
        return Exit(self._code()) if self._draining else Rejoin(attempt)

    def _over(self, silence: float) -> Exit | None:
        """Whether the pod may end by itself, `silence` seconds after the last contact."""
        ended = all(report.exit_code is not None for report in self.reports())
        if self._draining:
            late = asyncio.get_running_loop().time() >= self._drain_deadline
            return Exit(self._code()) if late or (ended and self._acknowledged) else None
        succeeded = ended and self._code() == 0
        if succeeded and self._acknowledged:
            return Exit(0)
        # with a failed rank the control plane has the word; only its silence ends the wait
        return Exit(self._code()) if ended and silence >= self._settings.contact_seconds else None

    def _code(self) -> int:
        """Exit code of the pod: that of the first rank that failed; 143 when it was ended early."""
        codes = [view.exit_code for view in self.views.values()]
        failed = [code for code in codes if code not in (0, None)]
        if failed:
            return 128 - failed[0] if failed[0] < 0 else failed[0]
        return DRAINED_EXIT if None in codes else 0
