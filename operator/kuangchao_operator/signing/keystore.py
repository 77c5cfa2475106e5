"""Signing keys: made, rotated and kept on disk by the issuer alone; a restart resumes where it was.

A key is published long before it signs and verifies for a while after, so that no verifier with a slightly old key
set ever refuses a good token. State follows from the times in `keys.json`; nothing is kept in memory only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import Field

from kuangchao_contracts.base import Contract
from kuangchao_contracts.keys import MAX_DENIED, Jwks, KeyState, PublicKey, public_key
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS
from kuangchao_operator.signing.files import private_directory, write_private

MIN_PUBLISH_SECONDS: Final = 120
"""Twice the 60 s in which verifiers renew their key set."""
RETIRING_SECONDS: Final = MAX_LEASE_SECONDS + 30
DAY: Final = 86_400


class KeyTimes(Contract):
    """Life of one key in unix seconds. `retires_at` None: no successor is planned yet."""

    kid: str
    created: int
    active_at: int
    retires_at: int | None = None

    @property
    def gone_at(self) -> int | None:
        """When the last token that it signed has expired."""
        return None if self.retires_at is None else self.retires_at + RETIRING_SECONDS

    def state(self, now: float) -> KeyState:
        """State at a time."""
        if now < self.active_at:
            return KeyState.PRE_ACTIVE
        if self.retires_at is None or now < self.retires_at:
            return KeyState.ACTIVE
        return KeyState.RETIRING if now < self.retires_at + RETIRING_SECONDS else KeyState.GONE


class KeyFile(Contract):
    """Content of `keys.json`, oldest key first."""

    keys: Annotated[tuple[KeyTimes, ...], Field(max_length=64)] = ()
    denied: Annotated[tuple[str, ...], Field(max_length=MAX_DENIED)] = ()
    """Key ids that nobody may trust any more, newest last."""


class KeyStore:
    """Keys below one directory. One process at a time."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        active_seconds: int = DAY,
        publish_seconds: int = MIN_PUBLISH_SECONDS,
    ) -> None:
        if publish_seconds < MIN_PUBLISH_SECONDS:
            raise ValueError(f"publish_seconds must be at least {MIN_PUBLISH_SECONDS}")
        if active_seconds <= publish_seconds:
            raise ValueError("active_seconds must exceed publish_seconds")
        self._directory, self._clock = private_directory(directory), clock
        self._active_seconds, self._publish_seconds = active_seconds, publish_seconds
        self._private: dict[str, Ed25519PrivateKey] = {}
        self._file = self._load()
        self.tick()

    def tick(self) -> bool:
        """Do what time asks for: plan the next key, forget keys that are gone. Whether anything changed."""
        now = int(self._clock())
        keys = [key for key in self._file.keys if key.state(now) is not KeyState.GONE]
        if not keys:
            keys = [self._make(now, active_at=now)]
        newest = keys[-1]
        if newest.active_at <= now and now >= newest.active_at + self._active_seconds - self._publish_seconds:
            successor = self._make(now, max(now + self._publish_seconds, newest.active_at + self._active_seconds))
            keys[-1:] = [newest.replace(retires_at=successor.active_at), successor]
        changed = tuple(keys) != self._file.keys
        if changed:
            self._store(self._file.replace(keys=tuple(keys)))
        return changed

    def deny(self, kid: str) -> bool:
        """Never sign with a key again, and name it as denied for good. Whether anything changed.

        Its private half is destroyed. If it was signing, its successor signs from now on: verifiers that are told of
        the denial are told of the new key with it.
        """
        if kid in self._file.denied:
            return False
        now = int(self._clock())
        keys = [key for key in self._file.keys if key.kid != kid]
        if not any(key.state(now) is KeyState.ACTIVE for key in keys):
            waiting = [key for key in keys if key.state(now) is KeyState.PRE_ACTIVE]
            keys = [key for key in keys if key not in waiting]
            keys.append(waiting[0].replace(active_at=now) if waiting else self._make(now, active_at=now))
        elif keys[-1].state(now) is KeyState.ACTIVE:
            # what was to follow it may be the key that is denied: another one is planned at its time
            keys[-1] = keys[-1].replace(retires_at=None)
        self._store(KeyFile(keys=tuple(keys), denied=(*self._file.denied, kid)[-MAX_DENIED:]))
        return True

    def signing_key(self) -> tuple[str, Ed25519PrivateKey]:
        """Kid and key that sign now. After a clock that jumped back it is the oldest one, which all verifiers know."""
        now = self._clock()
        active = [key for key in self._file.keys if key.state(now) is KeyState.ACTIVE]
        kid = (active[-1] if active else self._file.keys[0]).kid
        return kid, self._private[kid]

    def jwks(self) -> Jwks:
        """All keys that verifiers must know now; a retiring key says itself until when."""
        now = self._clock()
        keys = tuple(self._published(k, now) for k in self._file.keys if k.state(now) is not KeyState.GONE)
        return Jwks(keys=keys, denied=self._file.denied)

    def _published(self, key: KeyTimes, now: float) -> PublicKey:
        return public_key(self._private[key.kid].public_key(), key.state(now), key.gone_at)

    def _make(self, now: int, active_at: int) -> KeyTimes:
        private = Ed25519PrivateKey.generate()
        kid = public_key(private.public_key()).kid
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(self._key_path(kid), pem)  # before keys.json names it
        self._private[kid] = private
        return KeyTimes(kid=kid, created=now, active_at=active_at)

    def _store(self, file: KeyFile) -> None:
        write_private(self._directory / "keys.json", file.canonical())
        kept = {key.kid for key in file.keys}
        self._file = file
        for kid in self._private.keys() - kept:
            del self._private[kid]
        for path in self._directory.glob("*.key"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)

    def _load(self) -> KeyFile:
        path = self._directory / "keys.json"
        if not path.exists():
            return KeyFile()
        file = KeyFile.model_validate_json(path.read_bytes())
        for key in file.keys:
            private = load_pem_private_key(self._key_path(key.kid).read_bytes(), None)
            if not isinstance(private, Ed25519PrivateKey) or public_key(private.public_key()).kid != key.kid:
                raise ValueError(f"key file {key.kid}.key does not hold the key that its name says")
            self._private[key.kid] = private
        return file

    def _key_path(self, kid: str) -> Path:
        return self._directory / f"{kid}.key"
