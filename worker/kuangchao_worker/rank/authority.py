"""The rank's gate and the tokens that it calls through. Every call between layers in a rank passes here."""

import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import CapabilityError, DeniedError, ReachedAroundError, UnavailableError
from kuangchao_contracts.gate import Fence, Gate
from kuangchao_contracts.keys import Jwks, KeySet
from kuangchao_contracts.policy import Policy, PolicyBook
from kuangchao_contracts.ports.base import Port
from kuangchao_contracts.tokens import TokenVerifier, parse_claims, parse_strict
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.revocations import RevocationFile
from kuangchao_worker.pod.tokens import TokenFile
from kuangchao_worker.rank.reporting import GateReporter

UNKNOWN: Final = "unverified"
"""The subject of what was refused while the rank had no token: as a gate says it."""
REFRESH_SECONDS: Final = 15.0
REVOKED_SECONDS: Final = 1.0
"""How often the rank looks at what was taken back: a look costs a microsecond."""


class AttemptFence(Fence):
    """A rank lives for one attempt; a token of any other is refused, and one that was taken back."""

    def __init__(self, job_uid: str, attempt: int, revoked: RevocationFile) -> None:
        self._job_uid, self._attempt, self._revoked = job_uid, attempt, revoked

    def attempt(self, job_uid: str) -> int | None:
        """See Fence."""
        return self._attempt if job_uid == self._job_uid else None

    def revoked(self, jti: str) -> bool:
        """See Fence. The agent hears of revocations and writes them down for its ranks."""
        return jti in self._revoked.current.tokens


class LeaseClock:
    """Real time, held just before the expiry of an overdue lease for as long as the grace lasts.

    An outage of the control plane must not stop training, so a lease that nobody renews stays good inside its own rank
    for a while. Beyond the rank it is dead at its time: nothing can be committed or started with it. `on_change` is
    told when the grace begins and when it is over, before any call is judged by it.
    """

    def __init__(
        self, grace_seconds: float, on_change: Callable[[bool], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._grace, self._on_change, self._clock = grace_seconds, on_change, clock
        self.expires, self._overdue = 0.0, False

    def __call__(self) -> float:
        now, end = self._clock(), self.expires + self._grace
        overdue = self.expires <= now < end
        if overdue is not self._overdue:
            self._overdue = overdue
            self._on_change(overdue)
        held = self.expires - 1
        return held if held < now < end else now


class Authority:
    """Calls operations of the rank's layers under the rank's tokens, which are read again as they are renewed."""

    def __init__(
        self,
        assignment: Assignment,
        sink: AuditSink,
        reporter: GateReporter,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        trust = Path(assignment.trust_directory)
        self._jwks, self._monotonic = trust / "jwks.json", monotonic
        self._policy, self._policies = trust / "policy.json", PolicyBook()
        self._keys = KeySet(Jwks.model_validate_json(self._jwks.read_bytes()))
        self._reporter, self._clock = reporter, LeaseClock(assignment.lease_grace_seconds, reporter.lease, clock)
        self._revoked = RevocationFile(Path(assignment.run_directory))
        verifier = TokenVerifier(self._keys, (trust / "issuer").read_text().strip(), self._clock)
        fence = AttemptFence(assignment.launch.job_uid, assignment.attempt, self._revoked)
        self._gate = Gate(f"rank/{assignment.rank}", verifier, fence, sink, policies=self._policies)
        self._sink, self._resource, self._attempt = sink, assignment.resource, assignment.attempt
        self._file = TokenFile(Path(assignment.token_directory))
        self._tokens: dict[str, str] = {}
        self._read_at = self._looked_at = float("-inf")

    def serve(self, ports: Iterable[Port]) -> None:
        """Register the layers of this rank."""
        for port in ports:
            self._gate.register(port)

    def call(self, op: str, request: Contract) -> Contract:
        """Call through the gate; a refused token is replaced by the newest one and tried once more."""
        audience = self._gate.audience(op)
        self._keep_up()
        try:
            return self._gate.call_now(self._token(audience), op, self._resource, request)
        except ReachedAroundError:
            # no token makes that right, and what was half done would be done again
            self._reporter.notes()
            raise
        except CapabilityError:
            self._refresh()
            try:
                return self._gate.call_now(self._token(audience), op, self._resource, request)
            finally:
                self._reporter.notes()

    def refused(self, op: str, error: DeniedError) -> None:
        """Record what was refused before it could become a call: the rank's own code went past an operation."""
        if not self._tokens:
            # code of the task that is run as it is imported: nothing has been called yet
            self._keep_up()
        self._sink.step_denied(
            AuditRecord(
                ts=datetime.now(UTC),
                opid="",
                stage=Stage.DENY,
                layer=op.partition(".")[0],
                op=op,
                resource=self._resource,
                subject=self._subject(self._gate.audience(op)),
                decision=Decision.DENY,
                reason=error.code,
            )
        )
        self._reporter.notes()

    def _subject(self, audience: str) -> str:
        token = self._tokens.get(audience)
        return parse_claims(parse_strict(token)[1]).sub if token is not None else UNKNOWN

    def _token(self, audience: str) -> str:
        token = self._tokens.get(audience)
        if token is None:
            raise UnavailableError(f"this rank has no token for {audience}")
        return token

    def _keep_up(self) -> None:
        now = self._monotonic()
        if now - self._looked_at >= REVOKED_SECONDS:
            self._looked_at = now
            if self._revoked.refresh():
                self._refresh()
        if now - self._read_at >= REFRESH_SECONDS:
            self._refresh()

    def _refresh(self) -> None:
        """Take over renewed tokens, keys and policy; what cannot be read leaves the old ones in place."""
        self._read_at = self._monotonic()
        with contextlib.suppress(OSError, ValueError):
            self._policies.current = Policy.from_reply(self._policy.read_bytes())
        try:
            jwks = self._revoked.current.jwks or Jwks.model_validate_json(self._jwks.read_bytes())
            self._keys.update(jwks.denying(sorted(self._revoked.current.keys)))
            bundle = self._file.read()
        except (OSError, ValueError, UnavailableError):
            return
        if bundle.attempt != self._attempt:
            # our attempt is over and the agent is about to end us; newer tokens are not ours to use
            return
        prefix = "rank/"
        tokens = {k.removeprefix(prefix): v for k, v in bundle.tokens.items() if k.startswith(prefix)}
        if self._tokens and not self._known(tokens.values()):
            # by a key that took over without notice, or under a policy whose copy is late: what we hold is good until
            # that has reached us as well
            return
        self._tokens = tokens
        self._clock.expires = float(bundle.expires)

    def _known(self, tokens: Iterable[str]) -> bool:
        """Whether these tokens were signed by keys that are trusted here, and minted under a policy known here."""
        try:
            for token in tokens:
                header, payload = parse_strict(token)
                self._keys.lookup(header["kid"], self._clock())
                if parse_claims(payload).polv > self._policies.current.generation:
                    return False
        except CapabilityError:
            return False
        return True
