"""Floods of garbage: answered like any other refusal, soon unread, counted to the last one, harmless to others."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kuangchao_contracts import tokens
from kuangchao_contracts.audit import AuditRecord, Decision
from kuangchao_operator.audit.coalesce import VERBATIM
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.gate.limits import BURST, CALLS_BURST
from kuangchao_operator.gate.minting import LayerTokens
from tests.boundary.gate.plane import JOB, JOIN, POD, World
from tests.unit.authority.kit import Clock, Signer

BODY = {"resource": JOB.resource, "request": JOIN.wire()}


async def flood(world: World, calls: int, token: Callable[[int], str]) -> list[tuple[int, dict[str, Any]]]:
    """Many calls over one connection."""
    async with world.session() as session:
        return [await call(world, session, token(number)) for number in range(calls)]


async def call(world: World, session: aiohttp.ClientSession, token: str) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(f"{world.url}/v1/call/execution.join", json=BODY, headers=headers) as response:
        return response.status, await response.json()


async def lease(world: World) -> str:
    return (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")


def counted(records: list[AuditRecord], reason: str) -> int:
    return sum(record.count for record in records if record.reason == reason)


async def test_beyond_the_burst_nothing_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    parse = tokens.parse_strict
    monkeypatch.setattr(tokens, "parse_strict", lambda token: looked.append(token) or parse(token))
    signer = Signer(Clock())
    answers = await flood(world, 250, lambda _: signer.token())
    assert {(status, answer["error"], answer["message"]) for status, answer in answers} == {(401, "invalid_token", "")}
    assert len({answer["opid"] for _, answer in answers}) == 250
    assert len(looked) == BURST
    await world.stop()
    records = world.records()
    assert (counted(records, "UnknownKey"), counted(records, "TooManyFailures")) == (100, 150)
    assert all(record.decision is Decision.DENY and record.subject == "unverified" for record in records)


async def test_what_we_minted_passes_and_what_came_before_our_start_waits(world: World, issuer_home: Path) -> None:
    """Also behind the address of a flood nobody's lease is refused when it is renewed."""
    async with IssuerClient(issuer_home / "issuer.sock") as earlier:
        bundle = (await LayerTokens(earlier, world.fence, time.time).worker_bundles(JOB, 1, [POD]))[0]
    old, new = await lease(world), bundle.token("agent", "kc:execution")
    await flood(world, int(BURST), lambda _: "garbage")
    assert [status for status, _ in await flood(world, 3, lambda n: (old, new, old)[n])] == [200, 401, 200]
    world.failure_time += 0.1
    assert (await flood(world, 1, lambda _: new))[0][0] == 200


async def test_no_success_and_no_proven_failure_counts(world: World) -> None:
    good = await lease(world)
    assert {status for status, _ in await flood(world, int(BURST) + 50, lambda _: good)} == {200}
    world.fence.set(JOB.uid, 2)
    assert {status for status, _ in await flood(world, int(BURST) + 50, lambda _: good)} == {401}
    assert len(world.failures) == 0
    await world.stop()
    assert counted(world.records(), "StaleEpoch") == BURST + 50


async def test_a_worker_fills_the_store_neither_by_calls_that_are_allowed_nor_by_bodies_that_are_wrong(
    world: World,
) -> None:
    """The volume is all jobs'. Tokens are good, and new ones change nothing."""
    statuses = [status for status, _ in await flood(world, int(CALLS_BURST) + 50, await some(world))]
    assert statuses == [200] * int(CALLS_BURST) + [429] * 50
    world.failure_time += 1
    assert [status for status, _ in await flood(world, 11, await some(world))] == [200] * 10 + [429]
    beat = {"resource": JOB.resource, "request": {"join": 1}}
    async with world.session() as session:
        headers = {"Authorization": f"Bearer {await lease(world)}"}
        for _ in range(VERBATIM + 50):
            async with session.post(f"{world.url}/v1/call/execution.heartbeat", json=beat, headers=headers) as response:
                assert response.status == 400
    await world.stop()
    records = world.records()
    assert counted(records, "TooMuchSent") == 51
    wrong = [record for record in records if record.reason == "InvalidInput"]
    assert sum(record.count for record in wrong) == VERBATIM + 50
    assert len(wrong) <= VERBATIM + 2, "one more where a window ended meanwhile"


async def some(world: World) -> Callable[[int], str]:
    """Leases of one pod, another for each call."""
    held = [await lease(world) for _ in range(3)]
    return lambda number: held[number % 3]


async def test_made_up_operations_are_one_kind_of_failure(world: World) -> None:
    """Else each would be a record of its own, and a stranger could fill the store."""
    calls = VERBATIM + 50
    async with world.session() as session:
        for number in range(calls):
            async with session.post(f"{world.url}/v1/call/no.such{number}", json=BODY) as response:
                assert response.status == 403
    await world.stop()
    records = [record for record in world.records() if record.reason == "UnknownOperation"]
    assert sum(record.count for record in records) == calls
    assert any(record.count > 1 for record in records)


async def test_public_data_is_served_after_a_flood_has_ended(world: World) -> None:
    await flood(world, int(BURST), lambda _: "garbage")
    descriptors = f"{world.url}/v1/call/resource.descriptors"
    async with world.session() as session, session.post(descriptors, json=BODY) as response:
        assert response.status == 401
    world.failure_time += 1
    async with world.session() as session, session.post(descriptors, json=BODY) as response:
        assert response.status == 403  # nobody serves it in this control plane
