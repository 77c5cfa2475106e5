"""The rank's gate and the tokens that it calls through. Every call between layers in a rank passes here."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kuangchao_contracts.audit import AuditSink
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import CapabilityError, UnavailableError
from kuangchao_contracts.gate import Fence, Gate
from kuangchao_contracts.keys import Jwks, KeySet
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.base import Port
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.tokens import TokenFile

REFRESH_SECONDS: Final = 15.0
GRACE_SECONDS: Final = 3_600.0
"""How long a lease that nobody renews stays good inside its own rank: an outage of the control plane must not stop
training. Beyond the rank it is dead at its time, so nothing can be committed or started with it."""


class AttemptFence(Fence):
    """A rank lives for one attempt; a token of any other is refused."""

    def __init__(self, job_uid: str, attempt: int) -> None:
        self._job_uid, self._attempt = job_uid, attempt

    def attempt(self, job_uid: str) -> int | None:
        """See Fence."""
        return self._attempt if job_uid == self._job_uid else None

    def revoked(self, jti: str) -> bool:  # noqa: ARG002
        """See Fence. Revocation reaches a rank through its agent, which ends it."""
        return False


class LeaseClock:
    """Real time, held just before the expiry of an overdue lease for as long as the grace lasts."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self.expires = clock, 0.0

    def __call__(self) -> float:
        now = self._clock()
        held = self.expires - 1
        return held if held < now < self.expires + GRACE_SECONDS else now


class Authority:
    """Calls operations of the rank's layers under the rank's tokens, which are read again as they are renewed."""

    def __init__(
        self,
        assignment: Assignment,
        sink: AuditSink,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        trust = Path(assignment.trust_directory)
        self._jwks, self._monotonic = trust / "jwks.json", monotonic
        self._keys = KeySet(Jwks.model_validate_json(self._jwks.read_bytes()))
        self._clock = LeaseClock(clock)
        verifier = TokenVerifier(self._keys, (trust / "issuer").read_text().strip(), self._clock)
        fence = AttemptFence(assignment.launch.job_uid, assignment.attempt)
        self._gate = Gate(f"rank/{assignment.rank}", verifier, fence, sink)
        self._resource, self._attempt = assignment.resource, assignment.attempt
        self._file = TokenFile(Path(assignment.token_directory))
        self._tokens: dict[str, str] = {}
        self._read_at = float("-inf")

    def serve(self, ports: Iterable[Port]) -> None:
        """Register the layers of this rank."""
        for port in ports:
            self._gate.register(port)

    def call(self, op: str, request: Contract) -> Contract:
        """Call through the gate; a refused token is replaced by the newest one and tried once more."""
        layer = OPERATIONS[op].layer
        if self._monotonic() - self._read_at >= REFRESH_SECONDS:
            self._refresh()
        try:
            return self._gate.call_now(self._token(layer), op, self._resource, request)
        except CapabilityError:
            self._refresh()
            return self._gate.call_now(self._token(layer), op, self._resource, request)

    def _token(self, layer: Layer) -> str:
        token = self._tokens.get(layer.audience)
        if token is None:
            raise UnavailableError(f"this rank has no token for {layer.audience}")
        return token

    def _refresh(self) -> None:
        """Take over renewed tokens and keys; what cannot be read leaves the old ones in place."""
        self._read_at = self._monotonic()
        try:
            self._keys.update(Jwks.model_validate_json(self._jwks.read_bytes()))
            bundle = self._file.read()
        except (OSError, ValueError, UnavailableError):
            return
        if bundle.attempt != self._attempt:
            # our attempt is over and the agent is about to end us; newer tokens are not ours to use
            return
        prefix = "rank/"
        self._tokens = {k.removeprefix(prefix): v for k, v in bundle.tokens.items() if k.startswith(prefix)}
        self._clock.expires = float(bundle.expires)
