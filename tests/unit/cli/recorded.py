"""A job as it would be recorded: an audit store, and the checkpoint directory with the logs of its ranks."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.oplogfile import LogFile
from kuangchao_contracts.ports.state import SaveRequest, SubmitGradients
from kuangchao_contracts.run import CommitRequest
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_worker.agent import volume

START = datetime(2026, 1, 15, 8, tzinfo=UTC)
RESOURCE = "team/jobs/digits"
UID = "uid-1"


class Recorded:
    """Ranks of one job that train, save and commit; a test ends them where it likes."""

    def __init__(self, folder: Path, *, ranks: int = 2, every: int = 10, uid: str = UID) -> None:
        self.audit, self.job, self.uid = folder / "audit", folder / "volume" / "digits-1", uid
        self.ranks, self.every = ranks, every
        self.records: list[AuditRecord] = []
        self.job.mkdir(parents=True, exist_ok=True)
        (self.job / ".kuangchao-owner").write_text(f"{uid} team/digits")
        self.logs: list[OperationLog] = []
        self.attempt = self.step = 0
        self.kept: list[str] = []

    def call(self, op: str, stage: Stage = Stage.RESULT, **changes: Any) -> AuditRecord:
        """A record about the job."""
        number = len(self.records)
        fields = {
            "ts": START + timedelta(seconds=number),
            "opid": f"op-{self.uid}-{number}",
            "stage": stage,
            "layer": op.split(".", maxsplit=1)[0],
            "op": op,
            "resource": RESOURCE,
            "subject": "layer:execution",
            "jti": f"jti-{number}",
            "job": "digits",
            "job_uid": self.uid,
            "attempt": self.attempt,
            "decision": Decision.ALLOW,
            **changes,
        }
        record = AuditRecord(**fields)
        self.records.append(record)
        return record

    def start(self, step: int = 0) -> None:
        """The next attempt, from this step."""
        self.attempt, self.step = self.attempt + 1, step
        self.call("execution.launch")
        self.logs = []
        for rank in range(self.ranks):
            log = OperationLog()
            log.keep_in(LogFile(self.job / "oplog", self.attempt, rank))
            self.logs.append(log)

    def train(self, steps: int) -> None:
        """So many steps on every rank."""
        for _ in range(steps):
            self.step += 1
            for rank, log in enumerate(self.logs):
                subject = f"rank:team/digits/pod-{rank}"
                log.step("state.submit_gradients", RESOURCE, subject, SubmitGradients(step_id=self.step))

    def save(self, *, unkept: str | None = None, decision: Decision = Decision.ALLOW) -> CheckpointManifest:
        """Save and commit; a commit may be refused."""
        name = f"step-{self.step}.att-{self.attempt}"
        pins = []
        for log in self.logs:
            log.step("state.save", RESOURCE, "rank:team/digits/pod-0", SaveRequest(step=self.step, directory="/x"))
            pins.append(log.pin())
        manifest = CheckpointManifest(
            job_uid=self.uid, step=self.step, attempt=self.attempt, world_size=self.ranks, plan_hash="a" * 64,
            torch_version="2", files=(), oplogs={str(rank): str(pin) for rank, pin in enumerate(pins)},
            oplogs_without_file=unkept, every_steps=self.every,
        )  # fmt: skip
        (self.job / name).mkdir()
        (self.job / name / "manifest.json").write_bytes(manifest.canonical())
        self.kept.append(name)
        detail = CommitRequest(path=name, manifest=manifest).audit_text()[:1024]
        opid = f"commit-{self.uid}-{len(self.records)}"
        self.call("state.commit_checkpoint", Stage.INTENT, opid=opid, detail=detail, decision=Decision.ERROR)
        self.call("state.commit_checkpoint", opid=opid, detail=f"{detail} -> ok", decision=decision)
        return manifest

    def prune(self) -> None:
        """The oldest checkpoint fell out of the ledger."""
        volume.prune(self.job, self.kept.pop(0))

    def end(self) -> "Recorded":
        """Close the logs and store the records."""
        for log in self.logs:
            log.close()
        store = AuditStore(self.audit, START.timestamp)
        store.append([Entry(record) for record in self.records])
        store.close()
        return self

    def log(self, attempt: int, rank: int) -> Path:
        """The file of a log."""
        return self.job / "oplog" / f"att-{attempt}.rank-{rank}.jsonl"
