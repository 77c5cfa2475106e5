"""Capability tokens: the closed claim set, the strict gate in front of PyJWT, and verification. Never signing.

A token is a JWT with alg EdDSA (Ed25519) only. PyJWT alone accepts duplicate keys, foreign headers, string `exp` and
more when they are correctly signed, so the bytes are checked first and each token has one byte form.
"""

import base64
import binascii
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Final

import jwt
from pydantic import Field, ValidationError

from kuangchao_contracts import errors as e
from kuangchao_contracts.base import Contract
from kuangchao_contracts.keys import KeySet

ALGORITHM: Final = "EdDSA"
TOKEN_TYPE: Final = "kc-cap+jwt"
MAX_TOKEN_BYTES: Final = 8_192
MAX_LEASE_SECONDS: Final = 300
MAX_ONE_SHOT_SECONDS: Final = 60
LEEWAY_SECONDS: Final = 5
MAX_DEPTH: Final = 6
_SHAPE = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{86})", re.ASCII)
_KID = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_JTI = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)

Timestamp = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class Grant(Contract):
    """One right: an operation on one resource or, with a last segment `*`, on all of one kind in one namespace."""

    op: Annotated[str, Field(max_length=64, strict=True)]
    res: Annotated[str, Field(max_length=512, strict=True)]


class Claims(Contract):
    """The payload of a token; there are no other claims. Names are short because they travel with every call."""

    iss: Annotated[str, Field(max_length=256, strict=True)]
    sub: Annotated[str, Field(max_length=256, strict=True)]
    aud: Annotated[str, Field(max_length=64, strict=True)]
    iat: Timestamp
    nbf: Timestamp
    exp: Timestamp
    jti: Annotated[str, Field(min_length=22, max_length=22, strict=True)]
    cap: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=16)]
    ns: Annotated[str, Field(max_length=63, strict=True)]
    job: Annotated[str, Field(max_length=253, strict=True)]
    juid: Annotated[str, Field(max_length=64, strict=True)]
    att: Annotated[int, Field(ge=1, le=2**53, strict=True)]
    polv: Annotated[int, Field(ge=0, le=2**53, strict=True)]
    one: Annotated[bool, Field(strict=True)]
    ranks: Annotated[str, Field(max_length=256, strict=True)] | None = None
    pod: Annotated[str, Field(max_length=253, strict=True)] | None = None
    puid: Annotated[str, Field(max_length=64, strict=True)] | None = None
    par: Annotated[str, Field(min_length=22, max_length=22, strict=True)] | None = None
    cnf: Annotated[dict[str, str], Field(max_length=1)] | None = None


REQUIRED: Final = tuple(name for name, field in Claims.model_fields.items() if field.is_required())


def parse_strict(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and payload of a token whose bytes have the one allowed form. Checks no signature.

    Raises the CapabilityError that names the first fault found.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise e.TokenTooLargeError(f"token of {len(token)} bytes exceeds {MAX_TOKEN_BYTES}")
    match = _SHAPE.fullmatch(token)
    if match is None:
        raise e.MalformedTokenError("token is not three base64url parts with an Ed25519 signature")
    header, payload = _json_object(match[1]), _json_object(match[2])
    _base64url(match[3])
    _check_header(header)
    return header, payload


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
        raise e.LifetimeExceededError("an integer has more than 20 digits")
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
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_bounded_int, parse_float=_finite
        )
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise e.MalformedTokenError("part is not a strict UTF-8 JSON object") from None
    if not isinstance(value, dict) or text.startswith("\ufeff") or _depth(value) > MAX_DEPTH:
        raise e.MalformedTokenError("part is not a plain JSON object")
    if any("\x00" in s or any(0xD800 <= ord(c) <= 0xDFFF for c in s) for s in _strings(value)):
        raise e.MalformedTokenError("a string holds NUL or a lone surrogate")
    return value


def _depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, children), default=0) if isinstance(value, dict | list) else 0


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for k, v in value.items() for s in (k, *_strings(v))]
    return [s for v in value for s in _strings(v)] if isinstance(value, list) else []


def _check_header(header: dict[str, Any]) -> None:
    extra = set(header) - {"alg", "typ", "kid"}
    if extra:
        raise e.UnexpectedHeaderError("header has members beyond alg, typ and kid")
    if header.get("alg") != ALGORITHM:
        raise e.InvalidAlgorithmError("alg must be EdDSA")
    if header.get("typ") != TOKEN_TYPE:
        raise e.InvalidTypeError(f"typ must be {TOKEN_TYPE}")
    kid = header.get("kid")
    if not isinstance(kid, str) or _KID.fullmatch(kid) is None:
        raise e.MalformedKidError("kid must be an RFC 7638 thumbprint")


class TokenVerifier:
    """Verifies signatures and times, with a cache of verified tokens keyed by the SHA-256 of their bytes.

    The cache holds claims, never decisions: whether a call is allowed is judged each time by the gate.
    """

    def __init__(
        self, keys: KeySet, issuer: str, clock: Callable[[], float] = time.time, cache_size: int = 8_192
    ) -> None:
        self._keys, self._issuer, self._clock = keys, issuer, clock
        self._cache: OrderedDict[bytes, tuple[Claims, str, float]] = OrderedDict()
        self._cache_size = cache_size

    def verify(self, token: str, audience: str) -> tuple[Claims, str]:
        """Claims and kid of a genuine token for this audience that is valid now. Raises CapabilityError."""
        if not isinstance(token, str):
            raise e.MalformedTokenError("token is not text")
        if len(token) > MAX_TOKEN_BYTES:
            raise e.TokenTooLargeError(f"token of {len(token)} bytes exceeds {MAX_TOKEN_BYTES}")
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        hit = self._cache.get(key)
        now = self._clock()
        if hit is not None and hit[2] > now:
            claims, kid, _ = hit
            self._keys.require_usable(kid, now)
            self._check_times(claims, now)
            if claims.aud != audience:
                raise e.InvalidAudienceError("token is for another audience")
            return claims, kid
        claims, kid = self._verify_fully(token, audience, now)
        if not claims.one:
            self._cache[key] = (claims, kid, min(claims.exp, now + 60))
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return claims, kid

    def _verify_fully(self, token: str, audience: str, now: float) -> tuple[Claims, str]:
        header, payload = parse_strict(token)
        public_key = self._keys.lookup(header["kid"], now)
        try:
            # times, audience and issuer are checked below by our own clock and typed errors
            jwt.decode(
                token,
                public_key,
                algorithms=[ALGORITHM],
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "verify_iss": False,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except jwt.PyJWTError:
            raise e.InvalidSignatureError("signature does not match") from None
        claims = parse_claims(payload)
        if claims.iss != self._issuer:
            raise e.InvalidIssuerError("token is from another issuer")
        if claims.aud != audience:
            raise e.InvalidAudienceError("token is for another audience")
        self._check_times(claims, now)
        return claims, header["kid"]

    @staticmethod
    def _check_times(claims: Claims, now: float) -> None:
        if claims.exp + LEEWAY_SECONDS <= now:
            raise e.ExpiredSignatureError("token has expired")
        if claims.nbf - LEEWAY_SECONDS > now or claims.iat - LEEWAY_SECONDS > now:
            raise e.ImmatureSignatureError("token is not valid yet")


def parse_claims(payload: dict[str, Any]) -> Claims:
    """Typed claims of a payload. Raises the CapabilityError that fits the first fault."""
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
    return claims


def fingerprint(token: str, salt: bytes) -> str:
    """Salted short hash of a token for correlation in audit; cannot be turned back into the token."""
    return hashlib.blake2b(token.encode(), key=salt[:64], digest_size=12).hexdigest()
