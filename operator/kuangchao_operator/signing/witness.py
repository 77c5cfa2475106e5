"""Signer and witness of the audit record's checkpoints, with a key of its own. Sees sizes and roots, never records.

It remembers what it signed last for each day and signs only what continues that, so the operator's volume may be rolled
back as a whole and the next checkpoint still tells. It never signs a second history, and it never forgets by itself.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from kuangchao_contracts import merkle, notes
from kuangchao_contracts.notes import AuditKeys, Checkpoint, CheckpointRefusedError, CheckpointRequest
from kuangchao_operator.signing.files import private_directory, write_private

KEY_FILE: Final = "audit.key"
KEYS_FILE: Final = "audit-keys.json"
SUFFIX: Final = ".note"
KEPT_DAYS: Final = 120
"""Notes kept, one a day: longer than records are."""
AHEAD: Final = timedelta(days=1)
"""How far a day may lie ahead: one signed day closes all before it, so a wrong clock must not close years."""


class Witness:
    """Signs for one installation. One process at a time."""

    def __init__(self, directory: Path, issuer: str, clock: Callable[[], float]) -> None:
        self._directory, self._issuer, self._clock = private_directory(directory), issuer, clock
        self._private = self._load_key()
        self.keys = self._load_keys()
        """Public keys, for publication."""

    def last(self, day: date) -> str | None:
        """The newest note signed for a day."""
        path = self._path(day)
        return path.read_text("utf-8") if path.exists() else None

    def sign(self, request: CheckpointRequest) -> str:
        """A note, on disk here before it is handed out. Raises CheckpointRefusedError."""
        self._check_day(request.day)
        note = self.last(request.day)
        before = notes.parse(note) if note is not None else None
        if before is not None:
            check_continues(before, request)
        elif request.old_size or request.proof:
            raise CheckpointRefusedError(f"old_size={request.old_size}: nothing was signed for {request.day} yet")
        checkpoint = Checkpoint(
            issuer=self._issuer,
            day=request.day,
            size=request.size,
            root=request.root,
            # a clock that is set back must not make a newer note look older
            time=max(int(self._clock()), before.time if before else 1),
        )
        signed = notes.sign(checkpoint, self._private)
        write_private(self._path(request.day), signed.encode())
        self._forget_oldest()
        return signed

    def _check_day(self, day: date) -> None:
        days = self._days()
        if days and day < days[-1]:
            raise CheckpointRefusedError(f"day={day}: closed, since {days[-1]} was signed")
        latest = datetime.fromtimestamp(self._clock(), UTC).date() + AHEAD
        if day > latest:
            raise CheckpointRefusedError(f"day={day}: lies ahead; latest day that is signed now: {latest}")

    def _days(self) -> list[date]:
        return sorted(date.fromisoformat(path.stem) for path in self._directory.glob(f"*{SUFFIX}"))

    def _forget_oldest(self) -> None:
        for day in self._days()[:-KEPT_DAYS]:
            self._path(day).unlink()

    def _path(self, day: date) -> Path:
        return self._directory / f"{day.isoformat()}{SUFFIX}"

    def _load_key(self) -> Ed25519PrivateKey:
        path = self._directory / KEY_FILE
        if not path.exists():
            made = Ed25519PrivateKey.generate()
            write_private(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        private = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(private, Ed25519PrivateKey):
            raise TypeError(f"{KEY_FILE} does not hold an Ed25519 key")
        return private

    def _load_keys(self) -> AuditKeys:
        """Public keys with their times. Whoever removes the key file gets a new key; the old one stays known."""
        path, now = self._directory / KEYS_FILE, int(self._clock())
        known = AuditKeys.model_validate_json(path.read_bytes()).keys if path.exists() else ()
        own = notes.audit_key(self._private, now)
        if not known or known[-1].x != own.x:
            if known:
                known = (*known[:-1], known[-1].replace(retired=now))
            known = (*known, own)
        keys = AuditKeys(issuer=self._issuer, keys=known)
        write_private(path, keys.canonical())
        return keys


def check_continues(before: Checkpoint, request: CheckpointRequest) -> None:
    """Raise CheckpointRefusedError unless the request's tree begins with the one signed before."""
    if request.size < before.size:
        raise CheckpointRefusedError(f"size={request.size}: smaller than {before.size}, which was signed before")
    if request.old_size != before.size:
        raise CheckpointRefusedError(f"old_size={request.old_size}: {before.size} was signed last")
    roots = bytes.fromhex(before.root), bytes.fromhex(request.root)
    if not merkle.consistent(before.size, request.size, *roots, [bytes.fromhex(node) for node in request.proof]):
        raise CheckpointRefusedError(f"size={request.size}: not consistent with the root signed at {before.size}")
