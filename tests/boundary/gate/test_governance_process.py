"""The governance process answers queries on loopback, and only reads."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest

from kuangchao_contracts.audit import AuditPage
from tests.boundary.gate.plane import ELSEWHERE, JOB, JOIN, POD, World, process
from tests.ports import free_port
from tests.unit.authority.kit import TOKEN


async def test_governance_process_answers_queries_and_only_reads(world: World, tmp_path: Path) -> None:
    agent = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    await world.call("execution.join", agent.token("agent", "kc:execution"), JOIN.wire())
    bundle = await world.tokens.audit_bundle()
    (tmp_path / "bundle.json").write_text(json.dumps(bundle.wire()))
    port, audit_port = free_port(), free_port()
    arguments = ("--gate", world.url, "--bundle", str(tmp_path / "bundle.json"), "--ca", str(tmp_path / "ca.crt"),
                 "--port", str(port), "--audit-port", str(audit_port))  # fmt: skip
    async with (
        process("kuangchao_operator.layers.governance", *arguments, log=tmp_path / "governance.log"),
        aiohttp.ClientSession(f"http://{ELSEWHERE}:{port}") as anywhere,
        aiohttp.ClientSession(f"http://127.0.0.1:{audit_port}") as session,
    ):
        await answers(anywhere)
        await only_on_loopback(anywhere, audit_port)
        async with session.get("/v1/audit", params={"operation": "execution.join", "limit": "1"}) as response:
            page = AuditPage.model_validate(await response.json())
        assert [item.record.op for item in page.records] == ["execution.join"]
        assert page.next_after == page.records[0].seq
        for bad in ({"limit": "0"}, {"x": "1"}, [("job", "a"), ("job", "b")]):
            async with session.get("/v1/audit", params=bad) as response:
                assert response.status == 400
        async with session.post("/v1/audit") as response:
            assert response.status == 405
        await wait_for_metric(anywhere, 'kuangchao_audit_records_total{decision="allow",layer="execution"')
        token = bundle.token("governance", "kc:governance")
        assert (await world.call("execution.join", token, JOIN.wire()))[0] == 401
    assert not TOKEN.search((tmp_path / "governance.log").read_text())


async def only_on_loopback(anywhere: aiohttp.ClientSession, audit_port: int) -> None:
    """An address that is this machine's as well, but not the one that audit queries are bound to."""
    async with anywhere.get("/v1/audit") as response:
        assert response.status == 404
    with pytest.raises(aiohttp.ClientConnectorError):
        await anywhere.get(f"http://{ELSEWHERE}:{audit_port}/v1/audit")


async def wait_for_metric(session: aiohttp.ClientSession, wanted: str) -> None:
    async with asyncio.timeout(100):
        while True:
            async with session.get("/metrics") as response:
                if wanted in await response.text():
                    return
            await asyncio.sleep(0.05)


async def answers(session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(100):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get("/healthz"):
                    return
            await asyncio.sleep(0.05)
