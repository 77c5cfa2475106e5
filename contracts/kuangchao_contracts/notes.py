"""Checkpoints of the audit record: signed notes (C2SP signed-note and tlog-checkpoint) and the keys that they stand on.

A note is text for people and programs alike: origin, size, root, time, an empty line, one signature line. Checking one
takes public keys only. Whatever deviates by a byte is no note: there is one form and it is the signed one.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import Field

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.keys import b64url

CHECKPOINT_PATH: Final = "/v1/audit-checkpoint"
AUDIT_KEYS_PATH: Final = "/v1/audit-keys"
LINES: Final = 6
"""A note's lines."""
MAX_NOTE_BYTES: Final = 1_024
ED25519: Final = b"\x01"
"""Signature type of C2SP signed-note."""
CLOCK_SLACK: Final = timedelta(minutes=10)
"""How much earlier than its key a note may say it is: the issuer's clock may have been set back."""
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_NOTE: Final = re.compile(
    r"(?P<text>(?P<origin>(?P<issuer>[!-*,-~]{1,256})/audit/(?P<day>\d{4}-\d\d-\d\d))\n"
    r"(?P<size>[1-9]\d{0,18})\n(?P<root>[A-Za-z0-9+/]{43}=)\ntime (?P<time>[1-9]\d{0,11})\n)\n"
    "— (?P<name>[!-*,-~]{1,300}) (?P<signature>[A-Za-z0-9+/]{91}=)\n",
    re.ASCII,
)


class BadNoteError(KuangchaoError):
    """A checkpoint is no note, or nobody who may sign it has signed it."""


class CheckpointRefusedError(KuangchaoError):
    """The witness does not sign: what it is shown does not continue what it has signed before."""


class Checkpoint(Contract):
    """What a note says: the tree of a day had so many records and this root at a time (unix seconds)."""

    issuer: Annotated[str, Field(pattern=r"^[!-*,-~]+$", max_length=256)]
    day: date
    size: Annotated[int, Field(ge=1, lt=2**63)]
    root: Hash
    time: Annotated[int, Field(ge=1, lt=10**12)]

    @property
    def origin(self) -> str:
        """Which log this is about; also the name of the key, as tlog-checkpoint wants."""
        return f"{self.issuer}/audit/{self.day.isoformat()}"

    def text(self) -> str:
        """The signed part of the note."""
        root = base64.b64encode(bytes.fromhex(self.root)).decode()
        return f"{self.origin}\n{self.size}\n{root}\ntime {self.time}\n"


class AuditKey(Contract):
    """A public key for checkpoints: signs from `created` on, until `retired` (unix seconds)."""

    x: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$")]
    created: Annotated[int, Field(ge=0)]
    retired: Annotated[int, Field(ge=0)] | None = None

    def public(self) -> Ed25519PublicKey:
        """The key object."""
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(self.x + "="))

    def may_sign(self, moment: int) -> bool:
        """Whether it was in use at this time."""
        return moment >= self.created - CLOCK_SLACK.total_seconds() and (self.retired is None or moment < self.retired)


class AuditKeys(Contract):
    """All that an auditor needs to check checkpoints of one installation, oldest key first."""

    issuer: Annotated[str, Field(min_length=1, max_length=256)]
    keys: Annotated[tuple[AuditKey, ...], Field(min_length=1, max_length=64)]


class CheckpointRequest(Contract):
    """Ask the issuer to sign. `proof` shows that the tree of `old_size`, which it signed last, is the beginning."""

    day: date
    size: Annotated[int, Field(ge=1, lt=2**63)]
    root: Hash
    old_size: Annotated[int, Field(ge=0, lt=2**63)] = 0
    proof: Annotated[tuple[Hash, ...], Field(max_length=128)] = ()


class CheckpointReply(Contract):
    """The newest note of a day; None when there is none yet."""

    note: Annotated[str, Field(max_length=MAX_NOTE_BYTES)] | None = None


def audit_key(private: Ed25519PrivateKey, created: int) -> AuditKey:
    """The public half."""
    return AuditKey(x=b64url(_raw(private.public_key())), created=created)


def sign(checkpoint: Checkpoint, private: Ed25519PrivateKey) -> str:
    """The signed note of a checkpoint."""
    text = checkpoint.text()
    signature = key_id(checkpoint.origin, private.public_key()) + private.sign(text.encode())
    return f"{text}\n— {checkpoint.origin} {base64.b64encode(signature).decode()}\n"


def key_id(name: str, public: Ed25519PublicKey) -> bytes:
    """The four bytes by which a signature line names its key."""
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + _raw(public)).digest()[:4]


def parse(note: str) -> Checkpoint:
    """What a note says, unchecked. Raises BadNoteError."""
    return _match(note)[0]


def check(note: str, keys: AuditKeys) -> Checkpoint:
    """What a note says, once a key that was valid at its time is seen to have signed it. Raises BadNoteError."""
    checkpoint, signature = _match(note)
    if checkpoint.issuer != keys.issuer:
        raise BadNoteError(f"checkpoint of {checkpoint.issuer}, where {keys.issuer} is expected")
    for key in keys.keys:
        if key_id(checkpoint.origin, key.public()) == signature[:4] and _signed(key, checkpoint, signature[4:]):
            if key.may_sign(checkpoint.time):
                return checkpoint
            when = datetime.fromtimestamp(checkpoint.time, UTC).isoformat()
            raise BadNoteError(f"checkpoint is signed by a key that was not in use at {when}")
    raise BadNoteError("no known key has signed the checkpoint")


def parse_all(text: str) -> Iterator[str]:
    """Notes that were written one after the other. Raises BadNoteError."""
    lines = text.splitlines(keepends=True)
    for start in range(0, len(lines), LINES):
        note = "".join(lines[start : start + LINES])
        parse(note)
        yield note


def _match(note: str) -> tuple[Checkpoint, bytes]:
    found = _NOTE.fullmatch(note) if len(note) <= MAX_NOTE_BYTES else None
    if found is None or found["name"] != found["origin"]:
        raise BadNoteError("checkpoint is not a note of ours: origin, size, root, time, signature")
    try:
        root, signature = (base64.b64decode(found[part], validate=True) for part in ("root", "signature"))
        checkpoint = Checkpoint(
            issuer=found["issuer"],
            day=date.fromisoformat(found["day"]),
            size=int(found["size"]),
            root=root.hex(),
            time=int(found["time"]),
        )
    except (binascii.Error, ValueError):
        raise BadNoteError("checkpoint has a part that is out of its range") from None
    if checkpoint.text() != found["text"] or base64.b64encode(signature).decode() != found["signature"]:
        raise BadNoteError("checkpoint is not written in the one form that it has")
    return checkpoint, signature


def _signed(key: AuditKey, checkpoint: Checkpoint, signature: bytes) -> bool:
    try:
        key.public().verify(signature, checkpoint.text().encode())
    except InvalidSignature:
        return False
    return True


def _raw(public: Ed25519PublicKey) -> bytes:
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)
