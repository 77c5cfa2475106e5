"""Follows the ConfigMap `kuangchao-revocations`: what people take back there is refused within two seconds.

Refusing comes first and waits for nothing; then the issuer, the record and new tokens follow, each tried again at the
next look until it is done. What cannot be read stays as it was last, also over a restart: neither an outage nor whoever
deletes the list gives anything back.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Set
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kuangchao_contracts import names
from kuangchao_contracts.audit import AuditRecord, AuditSink, Decision, Stage, new_opid
from kuangchao_contracts.errors import AuditUnavailableError, ConflictError, KuangchaoError
from kuangchao_contracts.text import recordable
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.revocations import Reading, Revocations, key_of, read, writers
from kuangchao_operator.gate.trust import TrustLoop
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.client import MERGE, KubeApi, NotFoundError, RefusedError

LOOK_SECONDS: Final = 1.0
MAX_OWED: Final = 4_096
RECORDED_AT_ONCE: Final = 64
"""Records of one look: what is taken back next must not wait until thousands before it are on disk."""
MAX_SAID: Final = 1_024
logger = logging.getLogger(__name__)


class RevocationKeeper:
    """Keeps fence and key set equal to the ConfigMap, and the ConfigMap free of what has expired.

    `reissue` has everything minted anew that a taken-back key or token may have been part of; `wake` is told the uid
    of a job that was taken back or given back. `mark` is a file that says what was in force and recorded last.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        fence: JobFence,
        trust: TrustLoop,
        sink: AuditSink,
        clock: Callable[[], datetime],
        process: str,
        mark: Path,
        *,
        reissue: Callable[[], Awaitable[None]],
        wake: Callable[[str], None],
    ) -> None:
        self._api, self._namespace, self._fence, self._trust, self._sink = api, namespace, fence, trust, sink
        self._clock, self._process, self._reissue, self._wake = clock, process, reissue, wake
        self._mark = mark
        self._marked = self._now_in_force = Revocations()
        self.recall()
        self._who: dict[str, str] = {}
        self._asked: set[str] = set()
        self._denied: set[str] = set()
        """Keys that the issuer has been asked to deny, and those that it has denied."""
        self._owed: list[AuditRecord] = []
        self._stale = False
        self._said: set[tuple[str, str]] = set()

    async def keep(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except KuangchaoError as error:
                self._say("look", f"cannot follow revocations: {type(error).__name__}: {error}")
            else:
                self._said = {said for said in self._said if said[0] != "look"}

    async def look(self) -> None:
        """Read once and do what is due. Raises what the API server or the issuer raises; the next look goes on."""
        body = await self._api.get(paths.item("ConfigMap", names.REVOCATIONS, self._namespace))
        if body is None:
            self._say("missing", f"ConfigMap {names.REVOCATIONS} is missing; what it said last stays in force")
        else:
            reading = read(body.get("data") or {}, self._clock().timestamp())
            self._refuse(reading, body)
            await self._tidy(body, reading)
        try:
            await self._deny_keys()
            if self._stale:
                self._stale = False
                await self._reissue()
        finally:
            await self._record()
        self._remember()

    def recall(self) -> None:
        """Put in force what was when an earlier process recorded it. Once more before the first look, if the volume
        could not be read at first."""
        self._marked = self._now_in_force = self._recorded()
        self._fence.take_back(self._now_in_force.tokens, self._now_in_force.jobs)

    def _recorded(self) -> Revocations:
        try:
            kept = json.loads(self._mark.read_bytes())
            return read(kept, self._clock().timestamp()).revocations
        except FileNotFoundError:
            return Revocations()
        except (OSError, ValueError, AttributeError):
            logger.warning("%s cannot be read: what is taken back now is recorded once more", self._mark.name)
            return Revocations()

    def _remember(self) -> None:
        """Only what is recorded: a mark that is behind costs a second record at the next start, never one too few."""
        if self._owed or self._marked == self._now_in_force:
            return
        part = self._mark.with_suffix(".part")
        try:
            part.write_text(json.dumps(self._now_in_force.entries()))
            part.replace(self._mark)
        except OSError as error:
            self._say("mark", f"{self._mark.name} cannot be written: {error.strerror}")
            return
        self._marked = self._now_in_force

    def _refuse(self, reading: Reading, body: dict[str, Any]) -> None:
        for key, why in reading.malformed.items():
            self._say(key, f"{names.REVOCATIONS}: key {recordable(key, 128)} {why}")
        before, now = self._now_in_force, reading.revocations
        if now == before:
            return
        self._fence.take_back(now.tokens, now.jobs)
        self._now_in_force, self._who = now, writers(body)
        self._owe("token.revoke", now.keys() - before.keys())
        # an entry that has expired is no news
        self._owe("token.restore", before.keys() - now.keys() - reading.expired)
        self._stale = self._stale or bool(now.tokens.keys() - before.tokens.keys())
        for uid in now.jobs ^ before.jobs:
            self._wake(uid)

    async def _deny_keys(self) -> None:
        """A key that the issuer has denied already, before we came up, is no news."""
        kids = self._now_in_force.kids
        self._denied |= (kids & set(self._trust.jwks().denied)) - self._asked
        for kid in sorted(kids - self._denied):
            self._asked.add(kid)
            await self._trust.deny(kid)
            self._denied.add(kid)
            self._stale = True
            self._owe("keys.deny", {key_of("kid", kid)})

    def _owe(self, op: str, keys: Set[str]) -> None:
        """Note what is to be recorded. A key is recorded as denied, which it stays, and not as taken back."""
        for key in sorted(keys):
            kind, _, name = key.partition(".")
            if (kind == "kid") != (op == "keys.deny"):
                continue
            who = self._who.get(key)
            logger.warning("%s %s %s by %s", op, kind, name, who)
            record = AuditRecord(
                ts=self._clock(),
                opid=new_opid(),
                stage=Stage.SYSTEM,
                layer="interface",
                op=op,
                resource=f"{self._namespace}/configmaps/{names.REVOCATIONS}",
                subject="layer:interface",
                jti=name if kind == "jti" else "",
                kid=name if kind == "kid" else "",
                job_uid=name if kind == "job" else "",
                decision=Decision.ALLOW,
                detail=recordable(f"{key} by {who}" if who else key, 1024),
                process=self._process,
            )
            if len(self._owed) < MAX_OWED:
                self._owed.append(record)
            else:
                self._say(
                    "owed", f"more than {MAX_OWED} revocations wait for a record; the API server's log has the rest"
                )

    async def _record(self) -> None:
        for record in self._owed[:RECORDED_AT_ONCE]:
            try:
                await self._sink.durable(record)
            except AuditUnavailableError as error:
                self._say("record", f"revocations are in force and not recorded yet: {error}")
                return
            self._owed.pop(0)

    async def _tidy(self, body: dict[str, Any], reading: Reading) -> None:
        """Remove what has expired and give an end to what has none, unless somebody writes at the same moment."""
        if not reading.expired and not reading.stamps:
            return
        version = body["metadata"]["resourceVersion"]
        patch = {
            "metadata": {"resourceVersion": version},
            "data": {**dict.fromkeys(sorted(reading.expired)), **reading.stamps},
        }
        path, query = paths.of({**body, "kind": "ConfigMap"}), {"fieldManager": names.FIELD_MANAGER}
        try:
            await self._api.request("PATCH", path, patch, query=query, content_type=MERGE)
        except (ConflictError, NotFoundError):
            return
        except RefusedError as error:
            self._say("tidy", f"expired revocations cannot be removed: {error}")

    def _say(self, key: str, text: str) -> None:
        """Say something once, and again when it is something else."""
        if len(self._said) >= MAX_SAID:
            self._said.clear()
        if (key, text) not in self._said:
            self._said.add((key, text))
            logger.warning("%s", text)
