"""Follows the issuer's policy: in force here first, then published, then recorded. Decides nothing.

What the issuer cannot read stays what it was; this process tells people so and keeps asking.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage, new_opid
from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.minting import PolicyReply
from kuangchao_contracts.policy import BUILT_IN, Policy, PolicyBook, changes
from kuangchao_contracts.resources import CLUSTER
from kuangchao_contracts.text import recordable

log = logging.getLogger(__name__)
FOLLOW_SECONDS: Final = 5.0
RELOAD: Final = "policy.reload"
STALE: Final = "PolicyStale"
RESOURCE: Final = f"{CLUSTER}/policy/document"
MAX_IDS: Final = 180
"""Characters for the ids of each kind of change in a record, so that all three and both digests fit."""


class PolicySource(Protocol):
    """What is needed of the issuer's client."""

    def policy(self) -> Awaitable[PolicyReply]:
        """The policy in force, and why the file is not."""


async def nobody() -> str:
    """Author of a policy where nothing can tell."""
    return ""


async def unheard(_: str) -> None:
    """Where nobody beyond the log is told that the policy is stale."""


class PolicyLoop:
    """Keeps a process's book equal to the issuer's policy.

    `mark` is a file that says which policy was recorded last: a start is no reload, a change while nobody ran is one.
    `publish` hands it on to the ranks; `author` says who changed it last; `tell` is told the fault of a file that is
    not in force, once for each fault.
    """

    def __init__(
        self,
        issuer: PolicySource,
        policies: PolicyBook,
        mark: Path,
        sink: AuditSink,
        process: str,
        clock: Callable[[], datetime],
        publish: Callable[[], Awaitable[None]],
        author: Callable[[], Awaitable[str]] = nobody,
        tell: Callable[[str], Awaitable[None]] = unheard,
    ) -> None:
        self._issuer, self._policies, self._mark = issuer, policies, mark
        self._sink, self._process, self._clock = sink, process, clock
        self._publish, self._author, self._tell = publish, author, tell
        self._recorded = _read(mark)
        self._published: Policy | None = None
        self._problem = self._told = ""

    @property
    def stale(self) -> bool:
        """Whether the policy in force is another than the file's, which has a fault."""
        return bool(self._problem)

    async def refresh(self) -> None:
        """Ask once and do what is due. Raises what the issuer, the audit store or `publish` raises: then ask again."""
        reply = await self._issuer.policy()
        # nothing that can fail comes before this: what was narrowed bites, recorded or not
        self._policies.current, self._problem = reply.policy, reply.problem
        if reply.policy != self._published:
            await self._publish()
            self._published = reply.policy
        if reply.policy != self._recorded:
            await self._record_reload(reply.policy)
        if self._problem != self._told:
            await self._tell_stale()

    async def keep(self) -> None:
        """Follow for ever."""
        while True:
            try:
                await self.refresh()
            except KuangchaoError as error:
                log.warning(
                    "cannot follow the policy, generation %d stays: %s", self._policies.current.generation, error
                )
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _record_reload(self, new: Policy) -> None:
        old = self._recorded
        detail = describe(old, new, await self._author())
        await self._sink.durable(self._record(Decision.ALLOW, "", detail))
        self._recorded = new
        _write(self._mark, new)
        log.info("%s: %s", RELOAD, detail)

    async def _tell_stale(self) -> None:
        if self._problem:
            log.warning("%s: generation %d stays in force: %s", STALE, self._policies.current.generation, self._problem)
            await self._sink.durable(self._record(Decision.ERROR, STALE, self._problem))
            self._told = self._problem
            await self._tell(self._problem)
        else:
            log.info("the policy file is in force again, generation %d", self._policies.current.generation)
            self._told = ""

    def _record(self, decision: Decision, reason: str, detail: str) -> AuditRecord:
        policy = self._policies.current
        return AuditRecord(
            ts=self._clock(),
            opid=new_opid(),
            stage=Stage.SYSTEM,
            layer="interface",
            op=RELOAD,
            resource=RESOURCE,
            subject="layer:interface",
            policy=policy.generation,
            decision=decision,
            reason=reason,
            request_sha256=policy.sha256,
            detail=recordable(detail, 1024),
            process=self._process,
        )


def _read(mark: Path) -> Policy:
    try:
        return Policy.model_validate_json(mark.read_bytes())
    except FileNotFoundError:
        return BUILT_IN
    except (OSError, ValidationError):
        log.warning("%s cannot be read: the policy in force is recorded once more", mark.name)
        return BUILT_IN


def _write(mark: Path, policy: Policy) -> None:
    """A mark that cannot be written costs a second record at the next start, never one too few."""
    part = mark.with_suffix(".part")
    try:
        part.write_bytes(policy.canonical())
        part.replace(mark)
    except OSError as error:
        log.warning("%s cannot be written: %s", mark.name, error.strerror)


def describe(old: Policy, new: Policy, author: str) -> str:
    """What a reload changed, for its record: generations, digests, ids of rules, and who did it."""
    found = changes(old, new)
    parts = [
        f"generation {old.generation} -> {new.generation}",
        f"sha256 {old.sha256} -> {new.sha256}",
        f"added {_ids(found.added)}",
        f"removed {_ids(found.removed)}",
        f"changed {_ids(found.changed)}",
    ]
    return "; ".join([*parts, f"by {author[:160]}"] if author else parts)


def _ids(ids: tuple[str, ...]) -> str:
    """Ids as far as there is room, and how many more there are."""
    shown: list[str] = []
    for name in ids:
        if sum(len(known) + 1 for known in shown) + len(name) > MAX_IDS:
            return f"{','.join(shown)} and {len(ids) - len(shown)} more"
        shown.append(name)
    return ",".join(shown) or "none"
