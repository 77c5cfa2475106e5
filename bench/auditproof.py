"""The proof of the audit record: how fast a store is verified, beside plain SHA-256 of its bytes, and proved from."""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.audit import a_record
from bench.figures import Bound, Figure
from kuangchao_contracts import notes
from kuangchao_contracts.audit import Stage
from kuangchao_contracts.notes import AuditKeys, Checkpoint
from kuangchao_operator.audit import schema, tree
from kuangchao_operator.audit.prove import inclusion
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.audit.verify import verify

GROUP: Final = "audit"
ISSUER: Final = "kuangchao/bench"
EVERY: Final = 1_000
"""Records from one checkpoint to the next."""


def measure(quick: bool = False) -> list[Figure]:
    """All figures, in CPU seconds of this process: it does nothing but read, and others may be at work here."""
    count, rounds = (20_000, 3) if quick else (200_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        keys = fill(directory, count)
        pairs = [(cpu(lambda: whole(directory, keys, count)), cpu(lambda: hashed(directory))) for _ in range(rounds)]
        ours = statistics.median(ours for ours, _ in pairs)
        prove = statistics.median(cpu(lambda: inclusion(directory, count // 3)) for _ in range(rounds))
        rebuild = statistics.median(cpu(lambda: rebuilt(directory)) for _ in range(rounds))
    note = f"{count} records, checkpoint every {EVERY}"
    return [
        Figure(GROUP, "verify a store", count / ours, "records/s of CPU", Bound.AT_LEAST, 30_000, note),
        Figure(
            GROUP,
            "verify / read and SHA-256 the same bytes",
            statistics.median(ours / theirs for ours, theirs in pairs),
            "x CPU",
            note="median of ratios, turn about",
        ),
        Figure(GROUP, "prove a record of a day of 1.7 million", prove * 1.7e6 / count, "s of CPU", note="scaled"),
        Figure(GROUP, "tree of a day without a checkpoint", count / rebuild, "records/s of CPU", note="at a start"),
    ]


def fill(directory: Path, count: int) -> AuditKeys:
    """A store of so many records with checkpoints, and the key that signed them."""
    private, now = Ed25519PrivateKey.generate(), time.time()
    store = AuditStore(directory, lambda: now)
    record = a_record(Stage.RESULT).replace(ts=datetime.fromtimestamp(now, UTC), detail="step=1000 world=8 shards=8")
    for _ in range(count // EVERY):
        store.append([Entry(record)] * EVERY)
        head = store.tree
        said = Checkpoint(issuer=ISSUER, day=head.day, size=head.size, root=head.root, time=int(now))
        store.keep_checkpoint(head, notes.sign(said, private))
    store.close()
    return AuditKeys(issuer=ISSUER, keys=(notes.audit_key(private, int(now)),))


def whole(directory: Path, keys: AuditKeys, count: int) -> None:
    """What is timed: everything that `audit verify` does."""
    report = verify(directory, keys)
    assert (report.ok, report.records) == (True, count), report.problems


def hashed(directory: Path) -> None:
    """The least that anybody must do who checks the bytes."""
    with closing(schema.open_reader(schema.files(directory)[0])) as reader:
        for (body,) in reader.execute("SELECT body FROM records ORDER BY seq"):
            hashlib.sha256(body).digest()


def rebuilt(directory: Path) -> None:
    """The tree of a day as a start finds it when nothing was signed yet."""
    with closing(schema.open_writer(schema.files(directory)[0])) as reader:
        reader.execute("BEGIN")
        reader.execute("DELETE FROM checkpoints")
        tree.frontier(reader)
        reader.execute("ROLLBACK")


def cpu(what: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    what()
    return time.process_time() - began
