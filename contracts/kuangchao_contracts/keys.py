"""Public keys of the issuer: JWKS in, key objects out. A key is found by its RFC 7638 thumbprint only."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import Field

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import RetiredKeyError, RevokedKeyError, UnknownKeyError

UNKNOWN_SECONDS: Final = 10.0
MAX_DENIED: Final = 64
"""Keys that are named as denied, the newest. Older ones are not in the set any more, so they are unknown."""


class KeyState(StrEnum):
    """Life of a signing key: published before use, signing, verifying only, refused."""

    PRE_ACTIVE = "pre-active"
    ACTIVE = "active"
    RETIRING = "retiring"
    GONE = "gone"


class PublicKey(Contract):
    """One key of the JWKS. `use_until` (unix seconds) ends a retiring key at lookup, not at the next refresh."""

    kty: Literal["OKP"] = "OKP"
    crv: Literal["Ed25519"] = "Ed25519"
    x: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$")]
    kid: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$")]
    state: KeyState
    use_until: int | None = None


class Jwks(Contract):
    """Everything public about the issuer's keys."""

    keys: Annotated[tuple[PublicKey, ...], Field(max_length=64)]
    denied: Annotated[tuple[str, ...], Field(max_length=MAX_DENIED)] = ()

    def denying(self, kids: Iterable[str]) -> "Jwks":
        """The same keys with more of them denied, the newest last."""
        return self.replace(denied=tuple(dict.fromkeys((*self.denied, *kids)))[-MAX_DENIED:])


def b64url(raw: bytes) -> str:
    """Unpadded base64url."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def thumbprint(x: str) -> str:
    """RFC 7638 thumbprint of an Ed25519 key given by its `x` member; used as kid, so it binds kid to key."""
    canonical = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": x}, sort_keys=True, separators=(",", ":"))
    return b64url(hashlib.sha256(canonical.encode()).digest())


def public_key(key: Ed25519PublicKey, state: KeyState = KeyState.ACTIVE, use_until: int | None = None) -> PublicKey:
    """The JWKS entry of a key object."""
    x = b64url(key.public_bytes(Encoding.Raw, PublicFormat.Raw))
    return PublicKey(x=x, kid=thumbprint(x), state=state, use_until=use_until)


class KeySet:
    """The keys that a verifier trusts now; `update` swaps the whole set, and an unusable update changes nothing.

    `on_unknown` is told that a key was asked for which is not here, however many are, at most once in 10 s: whoever
    keeps the set may read it again, and no flood of made-up keys makes it read more often.
    """

    def __init__(self, jwks: Jwks, on_unknown: Callable[[], None] | None = None) -> None:
        self._keys: Mapping[str, tuple[PublicKey, Ed25519PublicKey]] = {}
        self._denied: frozenset[str] = frozenset()
        self._on_unknown, self._told = on_unknown, float("-inf")
        self.update(jwks)

    def update(self, jwks: Jwks) -> None:
        """Trust exactly these keys from now on. Raises ValueError when a kid is not its key's thumbprint."""
        keys = {}
        for key in jwks.keys:
            if key.kid != thumbprint(key.x):
                raise ValueError("kid is not the thumbprint of its key")
            keys[key.kid] = (key, Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key.x + "=")))
        self._keys, self._denied = keys, frozenset(jwks.denied)

    def require_usable(self, kid: str, now: float) -> tuple[PublicKey, Ed25519PublicKey]:
        """The key, if it may verify at this time. Raises UnknownKeyError, RetiredKeyError or RevokedKeyError."""
        if kid in self._denied:
            raise RevokedKeyError("key is denied")
        entry = self._keys.get(kid)
        if entry is None:
            self._tell(now)
            raise UnknownKeyError("key is not known")
        key = entry[0]
        if key.state is KeyState.GONE or (key.use_until is not None and now >= key.use_until):
            raise RetiredKeyError("key is retired")
        return entry

    def _tell(self, now: float) -> None:
        if self._on_unknown is not None and not 0 <= now - self._told < UNKNOWN_SECONDS:
            self._told = now
            self._on_unknown()

    def lookup(self, kid: str, now: float) -> Ed25519PublicKey:
        """Key object to verify with. Raises as `require_usable`."""
        return self.require_usable(kid, now)[1]
