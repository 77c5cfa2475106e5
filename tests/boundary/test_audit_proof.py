"""The record proved end to end: issuer process, audit sink, checkpoints, verification. Real crypto and files."""

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import pytest

from kuangchao_contracts import merkle, notes
from kuangchao_contracts.audit import AuditRecord
from kuangchao_contracts.auditproof import ProveRequest
from kuangchao_contracts.notes import CheckpointRefusedError, CheckpointRequest
from kuangchao_contracts.wire import ErrorReply, to_error
from kuangchao_operator.audit import prove, schema
from kuangchao_operator.audit.checkpoints import Checkpointer
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.audit.verify import verify
from kuangchao_operator.cli.audit_proof_commands import proven, verified
from kuangchao_operator.cli.portforward import PodPort
from kuangchao_operator.gate.issuer_client import IssuerClient
from tests.boundary.gate.plane import World, issuer_arguments, one_day, process
from tests.boundary.gate.test_governance_process import answers
from tests.ports import free_port
from tests.unit.authority.records import record


class Loopback:
    """The audit port of a governance process, as the CLI reaches it by a port-forward."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, query: Mapping[str, str]) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}?{urlencode(query)}", timeout=99) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise to_error(error.code, ErrorReply.model_validate_json(error.read())) from None


@contextlib.asynccontextmanager
async def issuer(directory: Path) -> AsyncIterator[IssuerClient]:
    """An issuer process of ours that is ended at the end."""
    arguments = issuer_arguments(directory)
    async with (
        process("kuangchao_operator.signing", *arguments, log=directory / "issuer.log"),
        IssuerClient(directory / "issuer.sock") as client,
    ):
        await client.wait_ready(60)
        yield client


def now(number: int) -> AuditRecord:
    return record(number, ts=datetime.now(UTC))


async def test_the_record_of_a_store_is_proved_with_public_keys(tmp_path: Path) -> None:
    audit, lines, anchors, clock = tmp_path / "audit", list[str](), list[str](), one_day()

    async def anchor(note: str) -> None:
        anchors.append(note)

    for run in range(2):
        async with issuer(tmp_path) as client:
            sink = StoreSink(audit, clock)
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
    (key_file,) = tmp_path.rglob("audit/audit.key")
    assert key_file.stat().st_mode & 0o777 == 0o600

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


async def test_a_cluster_is_verified_and_proved_through_governance(tmp_path: Path) -> None:
    notes_out: list[str] = []

    async def anchor(note: str) -> None:
        notes_out.append(note)

    async with issuer(tmp_path) as client, contextlib.AsyncExitStack() as stack:
        world = World(tmp_path, client)
        stack.push_async_callback(world.stop)
        await world.start()
        (tmp_path / "bundle.json").write_text(json.dumps((await world.tokens.audit_bundle()).wire()))
        duty = Checkpointer(tmp_path / "audit", world.sink, client, anchor, lambda line: None, time.time)
        for number in range(30):
            await world.sink.durable(now(number))
            if number % 10 == 9:
                await duty.finish()
        keys, port, audit_port = await client.audit_keys(), free_port(), free_port()
        arguments = ("--gate", world.url, "--bundle", str(tmp_path / "bundle.json"), "--ca", str(tmp_path / "ca.crt"),
                     "--port", str(port), "--audit-port", str(audit_port))  # fmt: skip
        async with process("kuangchao_operator.layers.governance", *arguments, log=tmp_path / "governance.log"):
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                await answers(session)
            pod = cast(PodPort, Loopback(audit_port))
            report = await asyncio.to_thread(verified, pod, keys, tuple(notes_out))
            assert (report.ok, report.problems, report.checkpoints) == (True, (), 3)
            proof = (await asyncio.to_thread(proven, pod, ProveRequest(seq=12))).inclusion
            assert proof is not None
            assert proof.check(keys)[0].seq == 12

            # somebody sets the store back to its second checkpoint; the anchor of the third was noted elsewhere
            connection = schema.open_writer(schema.files(tmp_path / "audit")[0])
            connection.execute("DELETE FROM checkpoints WHERE size > 20")
            connection.execute("DELETE FROM records WHERE seq > 20")
            connection.close()
            report = await asyncio.to_thread(verified, pod, keys, tuple(notes_out[-1:]))
            assert not report.ok
            assert any("before the anchor of 30" in problem for problem in report.problems)
            assert "the anchor is of 30" in report.problems[-1]
