"""Execution's hands on this machine: agents as processes, their mounted Secrets as files replaced in one step.

Carries out what execution was allowed to do through the gate; decides nothing.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_contracts.names import pod_name
from kuangchao_contracts.ports.execution import StopRequest
from kuangchao_contracts.wire import TOKEN_BUNDLE
from kuangchao_operator.gate.minting import JobRef, LayerTokens, PodRef
from kuangchao_operator.layers.execution.launcher import Launcher
from kuangchao_operator.layers.execution.model import PodFact
from kuangchao_operator.local.pool import NODE
from kuangchao_operator.local.processes import MARK, Child
from kuangchao_operator.local.rundir import RunDirectory, replace_file

MAX_GRACE_SECONDS: Final = 60
"""People who wait at a terminal are not kept longer than this, whatever the pod template says."""
FALLBACK_BYTES: Final = 2_048
HOST: Final = "127.0.0.1"
NO_GPUS: Final = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass
class LocalPod:
    """One agent process in the place of a pod."""

    name: str
    index: int
    incarnation: int
    attempt: int
    child: Child
    termination_log: Path
    deleting: bool = False
    finished_at: datetime | None = None

    def fact(self) -> PodFact:
        """The pod as execution sees it."""
        code = self.child.exit_code
        return PodFact(
            name=self.name,
            index=self.index,
            incarnation=self.incarnation,
            attempt=self.attempt,
            node=NODE,
            phase="Running" if code is None else "Failed" if code else "Succeeded",
            ready=code is None,
            deleting=self.deleting,
            exit_code=code,
            exit_reason="" if code is None else "Error" if code else "Completed",
            termination_message=self._last_words() if code is not None else "",
            finished_at=self.finished_at,
        )

    def _last_words(self) -> str:
        """The termination log or, when a failed agent left none, the end of its output, as the kubelet does it."""
        if self.termination_log.exists():
            return self.termination_log.read_text("utf-8", "replace")
        output = (
            self.child.output.read_bytes()[-FALLBACK_BYTES:].decode("utf-8", "replace") if self.child.exit_code else ""
        )
        return output.strip()


class LocalLauncher(Launcher):
    """Starts and ends the agents of one job."""

    def __init__(
        self,
        run: RunDirectory,
        tokens: LayerTokens,
        gate_url: str,
        kind: DeviceKind,
        forge: Path | None,
        changed: Callable[[], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._run, self._tokens, self._gate_url, self._kind = run, tokens, gate_url, kind
        self._forge = forge
        self._changed, self._clock = changed, clock
        self._pods: dict[str, LocalPod] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def pods(self) -> tuple[PodFact, ...]:
        """Facts of the agents that exist: running, or ended and not yet taken away."""
        return tuple(pod.fact() for pod in self._pods.values())

    async def launch(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Deliver the tokens of an attempt and start the agents that are not there yet."""
        await self.renew_tokens(job, attempt, incarnation)
        for index in range(job.spec.devices.count // job.spec.devices.per_pod):
            name = pod_name(job.metadata.name, job.metadata.uid, incarnation, index)
            if name in self._pods:
                self._pods[name].attempt = attempt
            else:
                self._pods[name] = await self._start(job, name, index, incarnation, attempt)
        self._changed()

    async def renew_tokens(self, job: TrainingJob, attempt: int, incarnation: int) -> None:
        """Mint the leases of every agent and replace its bundle; agents read it anew at each use."""
        meta, devices = job.metadata, job.spec.devices
        pods = [
            PodRef(
                pod_name(meta.name, meta.uid, incarnation, index),
                tuple(range(index * devices.per_pod, (index + 1) * devices.per_pod)),
            )
            for index in range(devices.count // devices.per_pod)
        ]
        plugins = tuple(plugin.name for plugin in job.spec.plugins)
        reference = JobRef(meta.namespace or "", meta.name, meta.uid, plugins)
        for pod, bundle in zip(pods, await self._tokens.worker_bundles(reference, attempt, pods), strict=True):
            content = bundle.model_dump_json(by_alias=True).encode()
            replace_file(self._run.token(pod.name) / TOKEN_BUNDLE, content)

    async def stop(self, job: TrainingJob, request: StopRequest) -> None:
        """End the agents of all incarnations up to this one. Their tokens are dead by now; the files go with them."""
        grace = 0 if request.force else grace_seconds(job)
        self._stop([pod for pod in self._pods.values() if pod.incarnation <= request.incarnation], grace)

    async def reclaim(self, job: TrainingJob) -> None:
        """End every agent."""
        self._stop(list(self._pods.values()), grace_seconds(job))

    def _stop(self, pods: list[LocalPod], grace: int) -> None:
        for pod in pods:
            if not pod.deleting:
                pod.deleting = True
                self._keep(self._end(pod, grace))
        self._changed()

    async def close(self) -> None:
        """End every agent now, with no grace, and wait until all are reaped."""
        for pod in self._pods.values():
            pod.deleting = True
        await asyncio.gather(*(pod.child.stop(0.0) for pod in self._pods.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pods.clear()

    async def _start(self, job: TrainingJob, name: str, index: int, incarnation: int, attempt: int) -> LocalPod:
        directory = self._run.pod(name)
        environment = {
            **agent_environment(os.environ, job),
            **self._visible_devices(job, index),
            MARK: str(self._run.root),
            "KUANGCHAO_GATE_URL": self._gate_url,
            "KUANGCHAO_POD": name,
            "KUANGCHAO_POD_INDEX": str(index),
            "KUANGCHAO_INCARNATION": str(incarnation),
            "KUANGCHAO_HOST": HOST,
            "KUANGCHAO_TOKEN_DIR": str(self._run.token(name)),
            "KUANGCHAO_TRUST_DIR": str(self._run.trust),
            "KUANGCHAO_CHECKPOINTS": str(self._run.checkpoints),
            "KUANGCHAO_TERMINATION_LOG": str(directory / "termination.log"),
            "KUANGCHAO_RUN_DIR": str(self._run.short(name)),
            "KUANGCHAO_GRACE_SECONDS": str(grace_seconds(job)),
            "KUANGCHAO_OPLOG": os.environ.get("KUANGCHAO_OPLOG", "always"),
            "KUANGCHAO_SHARED_FORGE": str(self._forge or ""),
        }
        command = [sys.executable, "-m", "kuangchao_worker.agent"]
        child = await Child.start(command, environment, directory / "output.log")
        pod = LocalPod(name, index, incarnation, attempt, child, directory / "termination.log")
        self._keep(self._watch(pod))
        return pod

    def _visible_devices(self, job: TrainingJob, index: int) -> dict[str, str]:
        """The GPUs of a pod; none for a pool of CPU devices, so that the plan is carried out as it is."""
        if self._kind is not DeviceKind.GPU:
            return NO_GPUS
        share = range(index * job.spec.devices.per_pod, (index + 1) * job.spec.devices.per_pod)
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, share))}

    async def _watch(self, pod: LocalPod) -> None:
        await pod.child.wait()
        pod.finished_at = self._clock()
        self._changed()

    async def _end(self, pod: LocalPod, grace: float) -> None:
        await pod.child.stop(grace)
        # not sooner: an agent learns by its refused token that its attempt is closed
        shutil.rmtree(self._run.token(pod.name), ignore_errors=True)
        self._pods.pop(pod.name, None)
        self._changed()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def grace_seconds(job: TrainingJob) -> int:
    """From SIGTERM to SIGKILL."""
    return min(job.spec.template.termination_grace_period_seconds, MAX_GRACE_SECONDS)


def agent_environment(own: Mapping[str, str], job: TrainingJob) -> dict[str, str]:
    """What an agent inherits: the user's environment without settings of ours, and the pod template's variables."""
    inherited = {name: value for name, value in own.items() if not name.startswith("KUANGCHAO_")}
    given = {variable.name: variable.value for variable in job.spec.template.env if variable.value is not None}
    return {**inherited, **given}
