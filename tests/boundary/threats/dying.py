"""Processes that serve one control call at the real gate each and kill themselves with SIGKILL at a point of it.

`python -m tests.boundary.threats.dying DIRECTORY` forks one for every operation and point, and prints how they ended.
Effects are files below the directory, so that they outlive the process as pods and a job's status do.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.audit import AuditRecord, Stage
from kuangchao_contracts.base import Contract
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports.execution import ExecutionControl, LaunchRequest, StopRequest
from kuangchao_contracts.run import Ack, CommitRequest, Empty
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.facts.store import JobStore, Mutation
from kuangchao_operator.layers.execution.model import PodFact
from kuangchao_operator.layers.state.service import StateService
from kuangchao_operator.shell.recovery import JobTruth
from tests.unit.authority.kit import ATTEMPT, JOB, JUID, NOW, NS, RESOURCE, Clock, FixedFence, Signer
from tests.unit.kube.bodies import job as job_body

POINTS: Final = ("after verify", "after intent", "mid-action", "after action", "before result", "never")
OPERATIONS: Final = ("execution.launch", "execution.stop", "execution.reclaim", "state.commit_checkpoint")
PODS: Final = 2
PLAN: Final = "0" * 64
COMMITTED: Final = "step-40.att-3"


class World(JobStore):
    """What outlives the operator: the job with its status, pods and Service."""

    def __init__(self, directory: Path) -> None:
        self._job, self._children = directory / "job.json", directory / "children.json"

    def begin(self, op: str) -> None:
        """As it is when the operation is decided: a launch finds nothing, the others a running gang."""
        status = {
            "attempt": ATTEMPT, "incarnation": 0, "planHash": PLAN,
            "allocation": [{"node": "n", "pods": f"0-{PODS - 1}", "devices": PODS}],
        }  # fmt: skip
        body = job_body(JOB, uid=JUID, status=status)
        body["metadata"]["namespace"] = NS
        self._job.write_text(json.dumps(body))
        running = [] if op == "execution.launch" else [{"index": index, "deleting": False} for index in range(PODS)]
        self.write(running, service=op != "execution.launch")

    def pods(self) -> list[dict[str, Any]]:
        return list(json.loads(self._children.read_text())["pods"])

    def service(self) -> bool:
        return bool(json.loads(self._children.read_text())["service"])

    def write(self, pods: list[dict[str, Any]], service: bool) -> None:
        self._children.write_text(json.dumps({"pods": pods, "service": service}))

    def job(self) -> TrainingJob:
        return TrainingJob.model_validate_json(self._job.read_text())

    async def get(self, namespace: str, name: str) -> TrainingJob | None:
        return self.job()

    async def update_status(self, namespace: str, name: str, uid: str, mutate: Mutation) -> TrainingJob:
        changed = self.job().replace(status=mutate(self.job()))
        at("mid-action")
        self._job.write_text(json.dumps(changed.wire()))
        at("after action")
        return changed

    async def of(self, resource: str, job_uid: str) -> JobTruth | None:
        """What a new operator finds; the same facts that the API server would give it."""
        facts = tuple(
            PodFact(name=names.pod_name(JOB, JUID, 0, p["index"]), incarnation=0, attempt=ATTEMPT, **p)
            for p in self.pods()
        )
        return JobTruth(self.job(), facts, self.service())


class Hands(ExecutionControl):
    """Launch, stop and reclaim in two steps each."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def launch(self, capability: Capability, request: LaunchRequest) -> Ack:
        return self._steps(
            lambda: self._world.write([{"index": 0, "deleting": False}], service=True),
            lambda: self._world.write([{"index": n, "deleting": False} for n in range(PODS)], service=True),
        )

    async def stop(self, capability: Capability, request: StopRequest) -> Ack:
        return self._steps(lambda: self._end(1), lambda: self._end(PODS))

    async def reclaim(self, capability: Capability, request: Empty) -> Ack:
        return self._steps(lambda: self._end(PODS), lambda: self._world.write([], service=False))

    def _end(self, count: int) -> None:
        self._world.write([{"index": n, "deleting": n < count} for n in range(PODS)], service=True)

    def _steps(self, first: Callable[[], None], second: Callable[[], None]) -> Ack:
        first()
        at("mid-action")
        second()
        at("after action")
        return Ack()


Hands.__abstractmethods__ = frozenset()  # the other operations of the port are not called


class DyingSink(StoreSink):
    """The real sink, with a point before and after each record."""

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:
        at("after verify" if record.stage is Stage.INTENT else "before result")
        await super().durable(record, consume)
        if record.stage is Stage.INTENT:
            at("after intent")


class _Point:
    chosen = "never"


def at(name: str) -> None:
    """Die here, if here is where. SIGKILL: no handler, no `finally` and no buffer of ours runs after it."""
    if name == _Point.chosen:
        os.kill(os.getpid(), signal.SIGKILL)


def request_of(op: str) -> Contract:
    """What the operation is asked for."""
    manifest = CheckpointManifest(
        job_uid=JUID, step=40, attempt=ATTEMPT, world_size=PODS, plan_hash=PLAN, torch_version="2", files=()
    )
    return {
        "execution.launch": LaunchRequest(attempt=ATTEMPT, incarnation=0, plan_hash=PLAN),
        "execution.stop": StopRequest(incarnation=0, reason="Fault"),
        "execution.reclaim": Empty(),
        "state.commit_checkpoint": CommitRequest(path=COMMITTED, manifest=manifest),
    }[op]


async def main(directory: Path, op: str, point: str) -> None:
    """Serve the one call."""
    world, clock = World(directory), Clock()
    world.begin(op)
    signer = Signer(clock)
    sink = DyingSink(directory / "audit", clock)
    clock.now = NOW - 2  # a new store refuses one-shots of the second in which it was made
    await sink.start()
    clock.now = NOW
    gate = Gate("operator", signer.verifier(), FixedFence(), sink, clock.moment)
    gate.register(Hands(world))
    gate.register(StateService(world, clock.moment))
    _Point.chosen = point
    holder: dict[str, Any] = {} if op.startswith("state.") else {"sub": "layer:execution", "pod": ..., "ranks": ...}
    await gate.call(signer.one_shot(op, **holder), op, RESOURCE, request_of(op))
    await sink.close()


def fork(directory: Path, op: str, point: str) -> int:
    """A process of its own that makes one call; its id. What it takes to import is paid once for all."""
    directory.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(main(directory, op, point))
            os._exit(0)
        finally:
            os._exit(1)
    return child


def code_of(child: int) -> int:
    """How a child ended."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    root = Path(sys.argv[1])
    cases = [(op, point) for op in OPERATIONS for point in POINTS]
    children = {f"{op} {point}": fork(root / op / point, op, point) for op, point in cases}
    sys.stdout.write(json.dumps({case: code_of(child) for case, child in children.items()}))
