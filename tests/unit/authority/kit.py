"""What tests of authority share: a clock, a signer that can also forge, a fence, a sink that remembers."""

import base64
import json
import re
import secrets
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, AuditSink
from kuangchao_contracts.base import Contract
from kuangchao_contracts.gate import Fence
from kuangchao_contracts.keys import Jwks, KeySet, KeyState, public_key
from kuangchao_contracts.tokens import TokenVerifier

ISSUER = "kuangchao/test"
NOW = 1_800_000_000.0
NS, JOB, JUID, ATTEMPT = "team-a", "digits", "uid-1", 3
RESOURCE = f"{NS}/jobs/{JOB}"
# With its dot: operation and key ids are random base64url and now and then contain the three letters alone.
TOKEN = re.compile(r"eyJ[\w-]{8,}\.[\w-]{8,}", re.ASCII)


MINTABLE: dict[str, Any] = {
    "subject": f"agent:{NS}/{JOB}/w-0",
    "namespace": NS,
    "job": JOB,
    "job_uid": JUID,
    "attempt": ATTEMPT,
    "lifetime_seconds": 300,
    "ranks": "0-3",
    "pod": "w-0",
}
"""What a lease for an agent consists of, apart from audience and grants."""


class Clock:
    """Time that moves only when told to."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Signer:
    """Holds a key pair and signs whatever it is given, legal or not."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.private = Ed25519PrivateKey.generate()
        self.public = public_key(self.private.public_key())

    def key_set(self, state: KeyState = KeyState.ACTIVE, use_until: int | None = None, denied: bool = False) -> KeySet:
        key = public_key(self.private.public_key(), state, use_until)
        return KeySet(Jwks(keys=(key,), denied=(key.kid,) if denied else ()))

    def verifier(self, **options: Any) -> TokenVerifier:
        return TokenVerifier(self.key_set(), ISSUER, self.clock, **options)

    def header(self, **changes: Any) -> dict[str, Any]:
        return _changed({"alg": "EdDSA", "typ": "kc-cap+jwt", "kid": self.public.kid}, changes)

    def payload(self, **changes: Any) -> dict[str, Any]:
        """A good lease of the pod's agent for the state layer."""
        now = int(self.clock())
        good = {
            "iss": ISSUER,
            "sub": f"agent:{NS}/{JOB}/w-0",
            "aud": "kc:state",
            "iat": now,
            "nbf": now,
            "exp": now + 300,
            "jti": b64(secrets.token_bytes(16)),
            "cap": [{"op": "state.restore_point", "res": RESOURCE}],
            "ns": NS,
            "job": JOB,
            "juid": JUID,
            "att": ATTEMPT,
            "polv": 1,
            "one": False,
            "ranks": "0-3",
            "pod": "w-0",
        }
        return _changed(good, changes)

    def sign(self, header: bytes, payload: bytes) -> str:
        signed = f"{b64(header)}.{b64(payload)}"
        return f"{signed}.{b64(self.private.sign(signed.encode()))}"

    def token(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        return self.sign(json.dumps(header or self.header()).encode(), json.dumps(self.payload(**claims)).encode())

    def one_shot(self, op: str, **claims: Any) -> str:
        defaults: dict[str, Any] = {
            "one": True,
            "exp": int(self.clock()) + 60,
            "cap": [{"op": op, "res": RESOURCE}],
            "aud": f"kc:{op.split('.', maxsplit=1)[0]}",
        }
        return self.token(**(defaults | claims))


def _changed(good: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`...` as a value removes the member."""
    merged = good | changes
    return {key: value for key, value in merged.items() if value is not ...}


class FixedFence(Fence):
    """Attempts and revocations as a test sets them."""

    def __init__(self, attempts: dict[str, int] | None = None) -> None:
        self.attempts = {JUID: ATTEMPT} if attempts is None else attempts
        self.taken_back: set[str] = set()

    def attempt(self, job_uid: str) -> int | None:
        return self.attempts.get(job_uid)

    def revoked(self, jti: str) -> bool:
        return jti in self.taken_back


class MemorySink(AuditSink):
    """Remembers everything in order; `broken` makes it refuse as a full disk does."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self.steps: list[tuple[str, str, str]] = []
        self.used: set[str] = set()
        self.broken = False

    async def durable(self, record: AuditRecord, consume: tuple[str, int, int] | None = None) -> None:
        if self.broken:
            raise e.AuditUnavailableError("disk full")
        if consume is not None:
            if consume[0] in self.used:
                raise e.ReplayedTokenError("used")
            self.used.add(consume[0])
        self.records.append(record)

    def best_effort(self, record: AuditRecord) -> None:
        self.records.append(record)

    def step(self, op: str, resource: str, subject: str, request: Contract) -> None:
        self.steps.append((op, resource, subject))

    def step_denied(self, record: AuditRecord) -> None:
        self.records.append(record)
