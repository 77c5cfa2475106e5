"""What passes between whoever proves the audit record and whoever checks it. Checking takes public keys only."""

from datetime import date
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts import merkle, notes
from kuangchao_contracts.audit import StoredRecord
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.notes import MAX_NOTE_BYTES, AuditKeys, Checkpoint, Hash

MAX_PROBLEMS: Final = 100
MAX_PROOF: Final = 128
GENESIS: Final = "0" * 64
"""`previous` of the first record ever."""
Note = Annotated[str, Field(max_length=MAX_NOTE_BYTES)]
Path = Annotated[tuple[Hash, ...], Field(max_length=MAX_PROOF)]


class ProofError(KuangchaoError):
    """A proof does not show what it is meant to show."""


class ShardEnd(Contract):
    """How a day ended: stated by the first record of the next one."""

    day: date
    size: Annotated[int, Field(ge=1)]
    root: Hash


class Position(Contract):
    """Where a verification stands, so that a long one goes on in another call."""

    day: date | None = None
    """The day that is being read; None before the first."""
    size: Annotated[int, Field(ge=0)] = 0
    peaks: Annotated[tuple[Hash, ...], Field(max_length=64)] = ()
    seq: Annotated[int, Field(ge=0)] = 0
    head: Hash = GENESIS
    ended: ShardEnd | None = None
    """How the day before ended."""
    uncovered: Annotated[str, Field(max_length=256)] = ""
    """What was not covered by a checkpoint when its day ended, to be told once a later day has one."""
    doubted: bool = False
    """A root of the day that is being read was wrong, so all later ones are: told once."""


class VerifyRequest(Contract):
    """Verify the store from a position on. `keys` None: signatures are not checked."""

    position: Position = Position()
    keys: AuditKeys | None = None
    anchors: Annotated[tuple[Note, ...], Field(max_length=64)] = ()
    limit: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    """Records to read at most."""


class VerifyReport(Contract):
    """What a verification found. `position` None: it is at the end."""

    ok: bool
    files: int
    records: int
    checkpoints: int = 0
    first: int = 0
    last: int = 0
    head: str = GENESIS
    unsigned: int = 0
    """Records at the end that no checkpoint covers yet."""
    problems: Annotated[tuple[str, ...], Field(max_length=MAX_PROBLEMS)] = ()
    position: Position | None = None


class ExtensionProof(Contract):
    """That a day's newest checkpoint continues one that is at hand: `proof` leads from it to `note`."""

    note: Note
    proof: Path = ()

    def check(self, anchor: Checkpoint, keys: AuditKeys) -> Checkpoint:
        """The checkpoint that continues the anchor. Raises BadNoteError, ProofError."""
        newest = notes.check(self.note, keys)
        if newest.day != anchor.day:
            raise ProofError(f"checkpoint is of {newest.day}, the anchor of {anchor.day}")
        if newest.size < anchor.size:
            raise ProofError(f"{newest.day} has {newest.size} records, the anchor {anchor.size}: the record was cut")
        roots, proof = (bytes.fromhex(anchor.root), bytes.fromhex(newest.root)), [bytes.fromhex(n) for n in self.proof]
        if not merkle.consistent(anchor.size, newest.size, *roots, proof):
            raise ProofError(f"{newest.day}: the record of {newest.size} does not continue the anchor of {anchor.size}")
        return newest


class ProveRequest(Contract):
    """Prove a record by its number, or that the record continues an anchor."""

    seq: Annotated[int, Field(ge=1)] | None = None
    anchor: Note | None = None


class InclusionProof(Contract):
    """That a record stands in the audit record at its place; the whole file that `kuangchao audit prove` writes."""

    kind: Annotated[str, Field(pattern="^kuangchao-audit-proof/1$")] = "kuangchao-audit-proof/1"
    seq: Annotated[int, Field(ge=1)]
    index: Annotated[int, Field(ge=0)]
    """Place in its day, from 0."""
    body: Annotated[str, Field(max_length=16_384)]
    """The stored bytes, which are ASCII."""
    proof: Path
    checkpoint: Note

    def check(self, keys: AuditKeys) -> tuple[StoredRecord, Checkpoint]:
        """The record and the checkpoint that covers it. Raises BadNoteError, ProofError."""
        checkpoint = notes.check(self.checkpoint, keys)
        leaf, proof = merkle.leaf_hash(self.body.encode()), [bytes.fromhex(node) for node in self.proof]
        if not merkle.includes(self.index, checkpoint.size, leaf, proof, bytes.fromhex(checkpoint.root)):
            raise ProofError(f"record {self.seq} is not number {self.index} of {checkpoint.size} on {checkpoint.day}")
        stored = StoredRecord.model_validate_json(self.body)
        if stored.seq != self.seq:
            raise ProofError(f"the record says that it is {stored.seq}, not {self.seq}")
        return stored, checkpoint


class ProveReply(Contract):
    """What was asked for."""

    inclusion: InclusionProof | None = None
    extension: ExtensionProof | None = None
