"""A store whose record is signed: real store, witness and checkpointer; only the wires between them are short."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

from kuangchao_contracts import errors as e
from kuangchao_contracts.auditproof import VerifyReport
from kuangchao_contracts.notes import AuditKeys, CheckpointRequest
from kuangchao_operator.audit import schema
from kuangchao_operator.audit.checkpoints import Checkpointer
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.tree import Head
from kuangchao_operator.audit.verify import verify
from kuangchao_operator.signing.witness import Witness
from tests.unit.authority.kit import ISSUER, Clock
from tests.unit.authority.records import record

DAY = 86_400


class Proven:
    """`down` names the parts that do not answer: issuer, answer (the request arrives), disk, anchor."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.keys_directory, self.clock = directory / "audit", directory / "keys", Clock()
        self.down: set[str] = set()
        self.anchors: list[str] = []
        self.evidence: list[str] = []
        self.lines: list[str] = []
        self.asked: list[CheckpointRequest] = []
        self.start()

    def start(self) -> None:
        self.witness = Witness(self.keys_directory, ISSUER, self.clock)
        self.store = AuditStore(self.directory, self.clock)
        self.checkpointer = Checkpointer(
            self.directory, self, self, self.anchor, self.lines.append, self.clock, self.noted, self.put_aside
        )

    def restart(self) -> None:
        self.store.close()
        self.start()

    def add(self, count: int = 1, detail: str = "") -> None:
        first = self.store.head[0] + 1
        assert self.store.append([Entry(record(first + i, detail=detail)) for i in range(count)]) == [None] * count

    async def signed(self, count: int) -> None:
        """So many more records, and a checkpoint over them."""
        self.add(count)
        self.clock.now += 11
        await self.checkpointer.tick()

    def verify(self, anchors: int = 1) -> VerifyReport:
        return verify(self.directory, self.witness.keys, self.anchors[-anchors:])

    @property
    def file(self) -> Path:
        return schema.files(self.directory)[-1]

    @property
    def tree(self) -> Head:
        return self.store.tree

    async def keep_checkpoint(self, head: Head, note: str) -> None:
        self._reach("disk", e.AuditUnavailableError)
        self.store.keep_checkpoint(head, note)

    async def last_checkpoint(self, day: date) -> str | None:
        self._reach("issuer", e.UnavailableError)
        return self.witness.last(day)

    async def sign_checkpoint(self, request: CheckpointRequest) -> str:
        self._reach("issuer", e.UnavailableError)
        self.asked.append(request)
        note = self.witness.sign(request)
        self._reach("answer", e.UnavailableError)
        return note

    async def anchor(self, note: str) -> None:
        self._reach("anchor", e.UnavailableError)
        self.anchors.append(note)

    async def noted(self) -> str | None:
        return self.anchors[-1] if self.anchors else None

    async def put_aside(self, note: str) -> None:
        self._reach("evidence", e.UnavailableError)
        self.evidence.append(note)

    async def audit_keys(self) -> AuditKeys:
        return self.witness.keys

    def _reach(self, part: str, error: Callable[[str], e.KuangchaoError]) -> None:
        if part in self.down:
            raise error(f"{part} does not answer")
