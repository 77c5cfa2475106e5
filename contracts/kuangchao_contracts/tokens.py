"""Capability tokens: the strict gate in front of PyJWT, and verification. Never signing.

A token is a JWT with alg EdDSA (Ed25519) only. PyJWT alone accepts duplicate keys, foreign headers, string `exp` and
more when they are correctly signed, so the bytes are checked first and each token has one byte form.
"""

import base64
import binascii
import hashlib
import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from jwt.algorithms import OKPAlgorithm
from pydantic import ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.claims import REQUIRED, WORKER_ROLES, Claims, Grant
from kuangchao_contracts.keys import KeySet
from kuangchao_contracts.tokencache import ExpiringCache, digest

ALGORITHM: Final = "EdDSA"
TOKEN_TYPE: Final = "kc-cap+jwt"
MAX_TOKEN_BYTES: Final = 8_192
MAX_LEASE_SECONDS: Final = 300
MAX_ONE_SHOT_SECONDS: Final = 60
LEEWAY_SECONDS: Final = 5
MAX_DEPTH: Final = 6
CACHE_SECONDS: Final = 60
CACHE_ENTRIES: Final = 8_192
FORGED_SECONDS: Final = 1
FORGED_ENTRIES: Final = 1_024
SIGNATURE_CHARACTERS: Final = 86
_SHAPE = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_KID = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_OP = re.compile(r"[a-z][a-z0-9_.-]*", re.ASCII)
"""Form only: which operations exist is known to the gate that serves them, not to everyone who reads a token."""
_JTI = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
_ED25519: Final = OKPAlgorithm()
"""PyJWT's own verification. Its `decode` would parse the token once more, with laxer rules than ours."""

__all__ = ["Claims", "Grant", "TokenVerifier", "fingerprint", "parse_claims", "parse_strict"]


def parse_strict(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and payload of a token whose bytes have the one allowed form. Checks no signature.

    Raises the CapabilityError that names the first fault found.
    """
    _check_size(token)
    match = _SHAPE.fullmatch(token)
    if match is None:
        raise e.MalformedTokenError("token is not three base64url parts")
    header = _json_object(match[1])
    _check_header(header)
    if len(match[3]) != SIGNATURE_CHARACTERS:
        raise e.MalformedTokenError("signature is not that of Ed25519")
    _base64url(match[3])
    return header, _json_object(match[2])


def _check_size(token: str) -> None:
    if len(token) > MAX_TOKEN_BYTES:
        raise e.TokenTooLargeError(f"token of {len(token)} bytes exceeds {MAX_TOKEN_BYTES}")


def _base64url(part: str) -> bytes:
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise e.MalformedTokenError("part is not base64url") from None
    # one byte form per token: unused trailing bits must be zero, else two texts decode to the same bytes
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
        raise e.MalformedTokenError("part is not canonical base64url")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise e.DuplicateKeyError("a JSON key occurs twice")
    return result


def _no_constant(text: str) -> Any:
    raise e.MalformedTokenError(f"{text} is not JSON")


def _bounded_int(text: str) -> int:
    if len(text) > 21:
        raise e.MalformedTokenError("an integer has more than 21 digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise e.MalformedTokenError("a number is too large")
    return value


def _json_object(part: str) -> dict[str, Any]:
    try:
        text = _base64url(part).decode("utf-8", "strict")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_bounded_int,
            parse_float=_finite,
        )
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise e.MalformedTokenError("part is not a strict UTF-8 JSON object") from None
    if not isinstance(value, dict):
        raise e.MalformedTokenError("part is not a JSON object")
    _check_plain(value)
    return value


def _check_plain(value: Any, depth: int = 1) -> None:
    if isinstance(value, str):
        # json.loads makes lone surrogates out of escapes; they and NUL have more than one reading elsewhere
        if "\x00" in value or not (value.isascii() or _encodable(value)):
            raise e.MalformedTokenError("a string holds NUL or a lone surrogate")
    elif isinstance(value, dict | list):
        if depth > MAX_DEPTH:
            raise e.MalformedTokenError(f"JSON is deeper than {MAX_DEPTH}")
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_plain(item, depth + 1)


def _encodable(text: str) -> bool:
    """Whether a text holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_header(header: dict[str, Any]) -> None:
    if set(header) - {"alg", "typ", "kid"}:
        raise e.UnexpectedHeaderError("header has members beyond alg, typ and kid")
    if header.get("alg") != ALGORITHM:
        raise e.InvalidAlgorithmError("alg must be EdDSA")
    if header.get("typ") != TOKEN_TYPE:
        raise e.InvalidTypeError(f"typ must be {TOKEN_TYPE}")
    kid = header.get("kid")
    if not isinstance(kid, str) or _KID.fullmatch(kid) is None:
        raise e.MalformedKidError("kid must be an RFC 7638 thumbprint")


class TokenVerifier:
    """Verifies signatures and times; remembers verified leases by the SHA-256 of their bytes.

    A hit saves the signature check and nothing else: key, times and audience are looked at again, and whether a call
    is allowed is judged each time by the gate. One-shots are never kept. One cache serves all audiences, since the
    audience is compared on every hit. A bad signature is remembered for a second, so that a flood of one forged token
    costs no more than its hash.
    """

    def __init__(
        self, keys: KeySet, issuer: str, clock: Callable[[], float] = time.time, cache_size: int = CACHE_ENTRIES
    ) -> None:
        self._keys, self._issuer, self._clock = keys, issuer, clock
        self._verified = ExpiringCache[tuple[Claims, str]](cache_size)
        self._forged = ExpiringCache[bool](FORGED_ENTRIES)

    def verify(self, token: str, audience: str) -> tuple[Claims, str]:
        """Claims and kid of a genuine token for this audience that is valid now. Raises CapabilityError."""
        claims, kid = self.genuine(token)
        self.require_usable(claims, audience)
        return claims, kid

    def recognises(self, token: str) -> bool:
        """Whether this very token was verified a short while ago; costs a hash, whatever the token is."""
        return len(token) <= MAX_TOKEN_BYTES and self._verified.get(digest(token), self._clock()) is not None

    def genuine(self, token: str) -> tuple[Claims, str]:
        """Claims and kid of a token that our issuer made, whoever it is for and however old. Raises CapabilityError."""
        if not isinstance(token, str):
            raise e.MalformedTokenError("token is not text")
        _check_size(token)
        key, now = digest(token), self._clock()
        hit = self._verified.get(key, now)
        if hit is not None:
            self._keys.require_usable(hit[1], now)
            return hit
        if self._forged.get(key, now):
            raise e.InvalidSignatureError("signature does not match")
        claims, kid = self._check(token, key, now)
        if not claims.one:
            self._verified.put(key, (claims, kid), min(claims.exp, now + CACHE_SECONDS))
        return claims, kid

    def require_usable(self, claims: Claims, audience: str) -> None:
        """Check audience and times of genuine claims. Raises CapabilityError."""
        if claims.aud != audience:
            raise e.InvalidAudienceError("token is for another audience")
        now = self._clock()
        if claims.exp + LEEWAY_SECONDS <= now:
            raise e.ExpiredSignatureError("token has expired")
        if claims.nbf - LEEWAY_SECONDS > now or claims.iat - LEEWAY_SECONDS > now:
            raise e.ImmatureSignatureError("token is not valid yet")

    def _check(self, token: str, key: bytes, now: float) -> tuple[Claims, str]:
        header, payload = parse_strict(token)
        public_key = self._keys.lookup(header["kid"], now)
        signed, _, signature = token.rpartition(".")
        if not _ED25519.verify(signed.encode(), public_key, _base64url(signature)):
            self._forged.put(key, True, now + FORGED_SECONDS)
            raise e.InvalidSignatureError("signature does not match")
        claims = parse_claims(payload)
        if claims.iss != self._issuer:
            raise e.InvalidIssuerError("token is from another issuer")
        return claims, header["kid"]


def parse_claims(payload: dict[str, Any]) -> Claims:
    """Typed claims of a payload. Raises the CapabilityError that fits the first fault."""
    _check_members(payload)
    try:
        claims = Claims.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        oversized = first["loc"][0] in ("exp", "iat", "nbf") and first["type"] == "less_than_equal"
        kind = e.LifetimeExceededError if oversized else e.InvalidClaimTypeError
        raise kind(f"claim {first['loc'][0]}: {first['msg']}") from None
    limit = MAX_ONE_SHOT_SECONDS if claims.one else MAX_LEASE_SECONDS
    if not 0 < claims.exp - claims.iat <= limit:
        raise e.LifetimeExceededError(f"lifetime must be 1 to {limit} seconds")
    if claims.role in WORKER_ROLES and (claims.pod is None or (claims.rank is None) == (claims.ranks is None)):
        raise e.MissingRequiredClaimError("worker tokens name their pod and either rank or ranks")
    for grant in claims.cap:
        if _OP.fullmatch(grant.op) is None:
            raise e.UnknownOperationError("token grants something that is no operation")
        resources.parse(grant.res, allow_wildcard=True)
    return claims


def _check_members(payload: dict[str, Any]) -> None:
    missing = [name for name in REQUIRED if name not in payload]
    if missing:
        raise e.MissingRequiredClaimError(f"claim {missing[0]} is missing")
    if set(payload) - set(Claims.model_fields):
        raise e.UnexpectedClaimError("payload has an unknown claim")
    if not isinstance(payload["jti"], str) or _JTI.fullmatch(payload["jti"]) is None:
        raise e.InvalidJTIError("jti must be 22 base64url characters")
    if not isinstance(payload["aud"], str):
        raise e.InvalidAudienceError("aud must be one string")
    if not isinstance(payload["iss"], str):
        raise e.InvalidIssuerError("iss must be one string")


def fingerprint(token: str, salt: bytes) -> str:
    """Salted short hash of a token for correlation in audit; cannot be turned back into the token."""
    return hashlib.blake2b(token.encode(), key=salt[:64], digest_size=12).hexdigest()
