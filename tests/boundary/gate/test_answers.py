"""What the gate says to those it refuses, and to bodies that it cannot read."""

import json
import logging

import pytest

from kuangchao_contracts.audit import Decision
from kuangchao_contracts.run import HeartbeatRequest
from tests.boundary.gate.plane import JOB, JOIN, POD, World
from tests.unit.authority.kit import TOKEN

OUTWARD: dict[str, tuple[str, list[tuple[str, str]], int, str]] = {
    "no header": ("execution.join", [], 401, "invalid_token"),
    "two headers": ("execution.join", [("Authorization", "Bearer {t}"), ("Authorization", "Bearer {t}")], 401,
                    "invalid_token"),
    "Bearer twice": ("execution.join", [("Authorization", "Bearer Bearer {t}")], 401, "invalid_token"),
    "other scheme": ("execution.join", [("Authorization", "Basic {t}")], 401, "invalid_token"),
    "lower case": ("execution.join", [("Authorization", "bearer {t}")], 401, "invalid_token"),
    "two tokens": ("execution.join", [("Authorization", "Bearer {t},{t}")], 401, "invalid_token"),
    "garbage": ("execution.join", [("Authorization", "Bearer a.b.c")], 401, "invalid_token"),
    "in another header": ("execution.join", [("X-Forwarded-Authorization", "Bearer {t}")], 401, "invalid_token"),
    "other audience": ("state.restore_point", [("Authorization", "Bearer {t}")], 401, "invalid_token"),
    "not granted": ("execution.launch", [("Authorization", "Bearer {t}")], 403, "denied"),
    "unknown operation": ("execution.explode", [("Authorization", "Bearer {t}")], 403, "denied"),
}  # fmt: skip


async def test_refusals_say_nothing_and_are_recorded_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")
    for number, (op, headers, status, word) in enumerate(OUTWARD.values(), start=1):
        sent = [(name, value.format(t=token)) for name, value in headers]
        got, answer = await world.post(op, None, {"resource": JOB.resource, "request": JOIN.wire()}, sent)
        assert (got, set(answer), answer["error"]) == (status, {"error", "message", "opid"}, word)
        assert answer["message"] == ""
        records = world.records()
        assert len(records) == number
        assert (records[-1].opid, records[-1].decision) == (answer["opid"], Decision.DENY)
        assert not TOKEN.search(records[-1].canonical().decode())
    assert token.split(".")[1] not in caplog.text


async def test_bad_bodies(world: World) -> None:
    token = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")
    good = {"resource": JOB.resource, "request": JOIN.wire()}
    for body in (b"", b"[]", b"{", b'{"resource":"a","resource":"b","request":{}}', {**good, "x": 1}, {"resource": 1}):
        status, answer = await world.post("execution.join", token, body)
        assert (status, answer["error"]) == (400, "InvalidInput")
    status, answer = await world.call("execution.join", token, {"attempt": "hunter2"})
    assert (status, "hunter2" in json.dumps(answer)) == (400, False)
    status, answer = await world.post("execution.join", token, {"resource": "x" * 5_000, "request": {}})
    assert (status, answer["error"]) == (403, "denied")
    status, answer = await world.post("execution.join", token, b"x" * (8 * 1024 * 1024 + 1))
    assert (status, answer["error"]) == (413, "TooLarge")


async def test_our_own_faults_show_nothing(world: World) -> None:
    token = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")
    body = HeartbeatRequest(join=JOIN, ranks=()).wire()
    status, answer = await world.call("execution.heartbeat", token, body)
    assert (status, answer["error"], answer["message"]) == (500, "Internal", "")
