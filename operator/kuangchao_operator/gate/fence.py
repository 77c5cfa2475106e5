"""The operator's fence: the current attempt of each job, as a copy of what the stored status says, and what people
have taken back before its time."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from kuangchao_contracts.gate import Fence

MAX_CLOSED: Final = 100_000
"""Closed jobs whose last attempt is remembered, so that a late event cannot open them again."""


class JobFence(Fence):
    """Fed by the shell; unknown jobs are closed, so nothing is let in before the facts are known."""

    def __init__(self) -> None:
        self._current: dict[str, int] = {}
        self._closed: OrderedDict[str, int] = OrderedDict()
        self._revoked: dict[str, int] = {}
        self._revoked_jobs: frozenset[str] = frozenset()

    def set(self, job_uid: str, attempt: int) -> None:
        """This attempt is current. Never goes back; a closed job opens again only with a higher attempt."""
        if attempt <= self._closed.get(job_uid, 0) or attempt < self._current.get(job_uid, 1):
            return
        self._closed.pop(job_uid, None)
        self._current[job_uid] = attempt

    def close(self, job_uid: str) -> None:
        """No token of any attempt so far is good any more. May be repeated."""
        attempt = self._current.pop(job_uid, None)
        if attempt is not None:
            self._closed[job_uid] = attempt
            while len(self._closed) > MAX_CLOSED:
                self._closed.popitem(last=False)

    def take_back(self, tokens: Mapping[str, int], jobs: Iterable[str]) -> None:
        """Exactly these tokens (with the time of their end) and the tokens of these jobs are taken back from now on."""
        self._revoked = dict(sorted(tokens.items(), key=lambda entry: entry[1]))
        self._revoked_jobs = frozenset(jobs)

    def attempt(self, job_uid: str) -> int | None:
        """Current attempt, None when closed or unknown."""
        return self._current.get(job_uid)

    def revoked(self, jti: str) -> bool:
        """Whether the token was taken back."""
        return jti in self._revoked

    def job_revoked(self, job_uid: str) -> bool:
        """Whether everything that the job's workers hold was taken back."""
        return job_uid in self._revoked_jobs

    def revocations(self) -> tuple[str, ...]:
        """Tokens taken back, the one that lives longest last."""
        return tuple(self._revoked)
