"""The record proved end to end: issuer process, audit sink, checkpoints, verification. Real crypto and files."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kuangchao_contracts import merkle, notes
from kuangchao_contracts.audit import AuditRecord
from kuangchao_contracts.notes import CheckpointRefusedError, CheckpointRequest
from kuangchao_operator.audit import prove, schema
from kuangchao_operator.audit.checkpoints import Checkpointer
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.verify import verify
from kuangchao_operator.gate.issuer_client import IssuerClient
from tests.unit.authority.records import record

ISSUER = "kuangchao/boundary"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.asynccontextmanager
async def issuer(directory: Path) -> AsyncIterator[IssuerClient]:
    """An issuer process of ours that is ended at the end."""
    socket = directory / "issuer.sock"
    arguments = ["--dir", str(directory / "keys"), "--socket", str(socket), "--issuer", ISSUER]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kuangchao_operator.signing",
        *arguments,
        env=ENVIRONMENT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with IssuerClient(socket) as client:
            await client.wait_ready(30)
            yield client
    finally:
        child.terminate()
        await asyncio.wait_for(child.wait(), 20)


def now(number: int) -> AuditRecord:
    return record(number, ts=datetime.now(UTC))


async def test_the_record_of_a_store_is_proved_with_public_keys(tmp_path: Path) -> None:
    audit, lines, anchors = tmp_path / "audit", list[str](), list[str]()

    async def anchor(note: str) -> None:
        anchors.append(note)

    for run in range(2):
        async with issuer(tmp_path) as client:
            sink = StoreSink(audit, time.time)
            await sink.start()
            duty = Checkpointer(audit, sink, client, anchor, lines.append, time.time)
            for number in range(10):
                await sink.durable(now(number))
            await duty.finish()
            await sink.close()
            keys = await client.audit_keys()
            assert notes.check(anchors[-1], keys).size >= 10 * (run + 1)
    assert len(lines) == len(anchors) == 2
    report = verify(audit, keys, anchors)
    assert (report.ok, report.problems, report.unsigned) == (True, (), 0)
    stored, _ = prove.inclusion(audit, 7).check(keys)
    assert stored.record.opid == "op-6"
    prove.extension(audit, anchors[0]).check(notes.parse(anchors[0]), keys)
    key_files = [path for path in (tmp_path / "keys" / "audit").iterdir() if path.suffix == ".key"]
    assert [path.stat().st_mode & 0o777 for path in key_files] == [0o600]

    connection = schema.open_writer(schema.files(audit)[0])
    connection.execute("UPDATE records SET body = CAST(replace(body, 'op-6', 'op-9') AS BLOB) WHERE opid = 'op-6'")
    connection.close()
    assert "record 7: says otherwise than its column opid" in verify(audit, keys, anchors).problems[0]


async def test_the_issuer_says_why_it_refuses(tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    root = merkle.Frontier().extend([merkle.leaf_hash(b"record")]).root().hex()
    async with issuer(tmp_path) as client:
        assert await client.last_checkpoint(today) is None
        note = await client.sign_checkpoint(CheckpointRequest(day=today, size=1, root=root))
        assert await client.last_checkpoint(today) == note
        with pytest.raises(CheckpointRefusedError, match="not consistent with the root signed at 1"):
            await client.sign_checkpoint(CheckpointRequest(day=today, size=1, root="0" * 64, old_size=1))
