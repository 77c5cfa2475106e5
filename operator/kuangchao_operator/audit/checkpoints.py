"""The duty that has the audit record signed: every so many records or seconds, when a day ends, when nothing happens.

A checkpoint goes into the day's file, to a line for the cluster's logs and to an anchor outside the store. Nothing here
ever holds a record back: while issuer, disk or API server fail, checkpoints are late, which `age` tells.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from kuangchao_contracts import notes
from kuangchao_contracts.errors import KuangchaoError, StorageError
from kuangchao_contracts.merkle import Frontier, leaf_hash
from kuangchao_contracts.notes import AuditKeys, BadNoteError, Checkpoint, CheckpointRefusedError, CheckpointRequest
from kuangchao_operator.audit import schema, tree
from kuangchao_operator.audit.shards import shards
from kuangchao_operator.audit.tree import Head

log = logging.getLogger(__name__)
RECORDS: Final = 1_000
BUSY_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60.0
POLL_SECONDS, RETRY_SECONDS = 1.0, 5.0
LAST_SECONDS: Final = 5.0
"""How long the end of the process waits for a last checkpoint."""


class Issuer(Protocol):
    """What is needed of the issuer's client."""

    def last_checkpoint(self, day: date) -> Awaitable[str | None]:
        """The newest note signed for a day."""

    def sign_checkpoint(self, request: CheckpointRequest) -> Awaitable[str]:
        """A new note. Raises CheckpointRefusedError."""

    def audit_keys(self) -> Awaitable[AuditKeys]:
        """The keys that notes are signed by."""


class Store(Protocol):
    """What is needed of the audit sink."""

    @property
    def tree(self) -> Head:
        """The tree of the current day."""

    def keep_checkpoint(self, head: Head, note: str) -> Awaitable[None]:
        """Keep a note in the file of its day."""


async def nothing() -> str | None:
    """The note outside the store where none is kept that a restart could find."""
    return None


async def nowhere(_: str) -> None:
    """Where such notes are put aside then."""


class Checkpointer:
    """One per store.

    `noted` gives the note that `anchor` replaces; `put_aside` keeps it when the store does not continue it.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        issuer: Issuer,
        anchor: Callable[[str], Awaitable[None]],
        announce: Callable[[str], None],
        clock: Callable[[], float],
        noted: Callable[[], Awaitable[str | None]] = nothing,
        put_aside: Callable[[str], Awaitable[None]] = nowhere,
    ) -> None:
        self._directory, self._store, self._issuer = directory, store, issuer
        self._anchor, self._announce, self._clock, self._noted = anchor, announce, clock, noted
        self._put_aside, self._looked_outside = put_aside, False
        self._signed: Head | None = None
        self._signed_at = self._started = clock()
        self._closed_before: date | None = None
        self._given_up: set[date] = set()
        self._to_anchor: str | None = None
        self.refused = 0
        """Refusals of the issuer: what is stored does not continue what it signed."""

    @property
    def age(self) -> float:
        """Seconds since the newest checkpoint, or since the start while there is none."""
        return max(0.0, self._clock() - self._signed_at)

    async def keep(self) -> None:
        """Look every second for ever. A failure is told once, until it is another or over."""
        told = ""
        while True:
            wait = POLL_SECONDS
            try:
                await self.tick()
                told = ""
            except KuangchaoError as error:
                if str(error) != told:
                    log.warning("audit checkpoint: %s: %s", type(error).__name__, error)
                told, wait = str(error), RETRY_SECONDS
            await asyncio.sleep(wait)

    async def finish(self) -> None:
        """Have the last records signed, if that can be done at once."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self.tick(last=True)
        except (KuangchaoError, TimeoutError) as error:
            log.warning("audit checkpoint at the end: %s: %s", type(error).__name__, error)

    async def tick(self, *, last: bool = False) -> None:
        """Sign what is due. Raises CheckpointRefusedError, UnavailableError, AuditUnavailableError, StorageError."""
        head = self._store.tree
        if self._closed_before != head.day:
            await self._close_days(head.day)
            self._closed_before = head.day
        if head.size and due(self._signed, head, self.age, last=last):
            note = await self._sign(head)
            self._signed, self._signed_at, self._to_anchor = head, self._clock(), note
            self._announce(line(note))
        if self._to_anchor is not None:
            if not self._looked_outside:
                await self._keep_evidence()
            await self._anchor(self._to_anchor)
            self._to_anchor = None

    async def _keep_evidence(self) -> None:
        """See once whether the store continues the note outside; what it does not continue is put aside for good.

        Store and issuer may have been set back together, so that neither of them knows better.
        """
        noted = await self._noted()
        broken = await self._break_after(noted) if noted is not None else ""
        if noted is not None and broken:
            await self._put_aside(noted)
            self.refused += 1
            log.warning("audit checkpoint: the store does not continue the note outside, see audit verify: %s", broken)
        self._looked_outside = True

    async def _break_after(self, noted: str) -> str:
        """Why the store does not continue a note; "" when it does."""
        try:
            said = notes.check(noted, await self._issuer.audit_keys())
        except BadNoteError as error:
            return str(error)
        try:
            found = await asyncio.to_thread(_root_of, self._directory, said)
        except StorageError as error:
            # a record that cannot be read is no reason to sign the rest in vain
            return str(error)
        if found == said.root:
            return ""
        return f"{said.size} records of {said.day} " + ("have another root" if found else "are not all here any more")

    async def _close_days(self, today: date) -> None:
        """Sign the end of every earlier day, oldest first: the issuer goes back to no day that another one followed."""
        for path in schema.files(self._directory):
            day = schema.day_of(path)
            if day >= today or day in self._given_up:
                continue
            head = await asyncio.to_thread(_unsigned, path)
            if head is None:
                continue
            try:
                self._announce(line(await self._sign(head)))
            except CheckpointRefusedError as error:
                # that day stays as it is, and verification says so; the days after it still get theirs
                log.warning("audit checkpoint: the end of %s is not signed: %s", day, error)
                self._given_up.add(day)

    async def _sign(self, head: Head) -> str:
        known = await self._issuer.last_checkpoint(head.day)
        before = notes.parse(known) if known is not None else None
        note = await self._ask(head, before.size if before is not None else 0)
        await self._store.keep_checkpoint(head, note)
        return note

    async def _ask(self, head: Head, old: int) -> str:
        try:
            if old > head.size:
                raise CheckpointRefusedError(f"{old} records of {head.day} were signed, {head.size} are stored")
            proof = await asyncio.to_thread(self._proof, old, head)
            request = CheckpointRequest(
                day=head.day, size=head.size, root=head.root, old_size=old, proof=tuple(node.hex() for node in proof)
            )
            return await self._issuer.sign_checkpoint(request)
        except CheckpointRefusedError:
            self.refused += 1
            raise

    def _proof(self, old: int, head: Head) -> tuple[bytes, ...]:
        if old in {0, head.size}:
            return ()
        with tree.reading(schema.file_of(self._directory, head.day)) as reader:
            return tree.consistency(reader, old, head)


def due(signed: Head | None, head: Head, age: float, *, last: bool = False) -> bool:
    """Whether to sign now."""
    if signed is None or signed.day != head.day:
        return True
    added = head.size - signed.size
    return added >= RECORDS or age >= IDLE_SECONDS or (added > 0 and (last or age >= BUSY_SECONDS))


def line(note: str) -> str:
    """A checkpoint as one line for whoever collects the logs."""
    said = notes.parse(note)
    fields = {"event": "audit checkpoint", "day": said.day.isoformat(), "size": said.size, "checkpoint": note}
    return json.dumps(fields, sort_keys=True)


def _root_of(directory: Path, said: Checkpoint) -> str:
    """Root of the day's first records, as many as a note is about, read one by one; "" when there are not so many.

    Raises StorageError.
    """
    shard = next((shard for shard in shards(directory) if shard.day == said.day), None)
    if shard is None:
        return ""
    if shard.gone and shard.summary is not None:
        return shard.summary.root if shard.summary.size == said.size else ""
    grown = Frontier().extend(map(leaf_hash, islice(shard.bodies(), said.size)))
    return grown.root().hex() if grown.end == said.size else ""


def _unsigned(path: Path) -> Head | None:
    """The end of a day that no checkpoint covers yet."""
    with tree.reading(path) as reader:
        covered = tree.newest(reader)
        (count,) = reader.execute("SELECT count(*) FROM records").fetchone()
        if count == 0 or (covered is not None and covered.size >= count):
            return None
        return Head.of(schema.day_of(path), tree.frontier(reader))
