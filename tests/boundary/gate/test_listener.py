"""Callers who say little, much, or no HTTP: none keeps a connection, and none is quoted."""

import asyncio
import contextlib
import gzip
import json
import logging
import ssl
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from kuangchao_operator.gate import listener
from kuangchao_operator.gate.listener import Listener
from kuangchao_operator.gate.minting import PodRef
from kuangchao_operator.gate.server import LARGE_PER_SECOND, MAX_BODY_BYTES, MAX_MEMBERS, SMALL_BODY_BYTES
from tests.boundary.gate.plane import JOB, JOIN, POD, World

BODY = json.dumps({"resource": JOB.resource, "request": JOIN.wire()}).encode()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def plain(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port)


@contextlib.asynccontextmanager
async def secure(world: World, port: int | None = None) -> AsyncIterator[Streams]:
    tls = ssl.create_default_context(cafile=world.directory / "ca.crt")
    to = port or int(world.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", to, ssl=tls)
    yield reader, writer
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()


def head(*headers: str) -> bytes:
    lines = ("POST /v1/call/execution.join HTTP/1.1", "Host: gate", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of one answer."""
    start = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line.split(":")[1]) for line in start.splitlines() if line.lower().startswith("content-length"))
    return int(start.split()[1]), (await reader.readexactly(length)).decode()


async def token(world: World) -> str:
    return (await world.tokens.worker_bundles(JOB, 1, [POD]))[0].token("agent", "kc:execution")


@pytest.fixture
async def hasty() -> AsyncIterator[int]:
    """Port of a listener without patience."""
    started = Listener(web.Application(), idle_seconds=0.2)
    yield await started.start("127.0.0.1", 0, None)
    await started.stop()


@pytest.mark.parametrize("first", [b"", b"P", head()[:-2], b"\r\n"], ids=["nothing", "a byte", "half a head", "a line"])
async def test_who_does_not_finish_a_head_is_dropped(hasty: int, first: bytes) -> None:
    reader, writer = await plain(hasty)
    writer.write(first)
    assert await reader.read() == b""
    writer.close()


async def test_a_head_that_trickles_in_is_dropped(hasty: int) -> None:
    """Each byte on its own would be in time."""
    reader, writer = await plain(hasty)
    with contextlib.suppress(ConnectionError):
        while not reader.at_eof():
            writer.write(b"x")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.02)
    writer.close()


async def test_an_address_has_so_many_connections() -> None:
    started = Listener(web.Application(), connections=2)
    port = await started.start("127.0.0.1", 0, None)
    first, second, third = [await plain(port) for _ in range(3)]
    with contextlib.suppress(ConnectionError):
        assert await third[0].read() == b""
    assert await status_of(second) == 404
    first[1].close()
    await first[1].wait_closed()
    assert await status_of(second) == 404  # by now the server has seen the end of the first
    fourth = await plain(port)
    assert await status_of(fourth) == 404
    for _, writer in (second, third, fourth):
        writer.close()
    await started.stop()


async def status_of(streams: Streams) -> int:
    streams[1].write(b"GET /nothing HTTP/1.1\r\nHost: gate\r\n\r\n")
    return (await answer(streams[0]))[0]


async def test_who_does_not_finish_the_handshake_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.1)
    server = world.another_server()
    port = await server.start("127.0.0.1", 0, world.certificate.context)
    reader, writer = await plain(port)
    assert await reader.read() == b""
    writer.close()
    await server.stop()


async def test_a_body_that_does_not_come(world: World) -> None:
    server = world.another_server(body_seconds=0.1)
    port = await server.start("127.0.0.1", 0, world.certificate.context)
    async with secure(world, port) as (reader, writer):
        writer.write(head(f"Authorization: Bearer {await token(world)}", f"Content-Length: {len(BODY)}") + BODY[:5])
        status, text = await answer(reader)
        assert (status, json.loads(text)["error"]) == (503, "Unavailable")
    await server.stop()


@pytest.mark.parametrize(
    "announced",
    [f"Content-Length: {MAX_BODY_BYTES}", f"Content-Length: {SMALL_BODY_BYTES + 1}", "Transfer-Encoding: chunked"],
)
async def test_a_strangers_large_body_is_not_waited_for(world: World, announced: str) -> None:
    async with secure(world) as (reader, writer):
        writer.write(head("Authorization: Bearer a.b.c", announced))
        status, text = await answer(reader)
        assert (status, json.loads(text)["error"]) == (401, "invalid_token")
    (record,) = world.records()
    assert (record.op, record.reason, record.resource) == ("execution.join", "MalformedToken", "")


async def large(world: World, port: int, presented: str, op: str = "execution.join") -> str:
    """Announce a large body and send nothing of it: the error that is answered."""
    async with secure(world, port) as (reader, writer):
        announced = head(f"Authorization: Bearer {presented}", f"Content-Length: {MAX_BODY_BYTES}")
        writer.write(announced.replace(b"execution.join", op.encode()))
        return str(json.loads((await answer(reader))[1])["error"])


async def test_large_bodies_are_few_for_each_subject(world: World) -> None:
    """Parsing one holds everybody up, and a worker that was taken over has a good token."""
    now = [0.0]
    server = world.another_server(body_seconds=0.1, monotonic=lambda: now[0])
    port = await server.start("127.0.0.1", 0, world.certificate.context)
    own = await token(world)
    sibling = (await world.tokens.worker_bundles(JOB, 1, [PodRef("w-9", (9,))]))[0].token("agent", "kc:execution")
    assert [await large(world, port, own) for _ in range(2)] == ["Unavailable"] * 2, "read, and nothing came"
    assert [await large(world, port, await token(world)) for _ in range(2)] == ["TooMuchSent"] * 2
    assert [record.reason for record in world.records()][-2:] == ["TooMuchSent"] * 2
    assert await large(world, port, sibling) == "Unavailable"
    now[0] += MAX_BODY_BYTES / LARGE_PER_SECOND
    assert await large(world, port, own) == "Unavailable"
    await server.stop()


@pytest.mark.parametrize(
    ("op", "reason"), [("state.restore_point", "InvalidAudience"), ("nothing.known", "UnknownOperation")]
)
async def test_a_large_body_for_which_the_token_is_no_good_is_not_waited_for(
    world: World, op: str, reason: str
) -> None:
    port = int(world.url.rsplit(":", 1)[1])
    assert await large(world, port, await token(world), op) in {"invalid_token", "denied"}
    assert world.records()[-1].reason == reason


async def test_an_object_with_very_many_members_is_none_of_ours(world: World) -> None:
    many = json.dumps({"resource": JOB.resource, "request": {str(n): 1 for n in range(MAX_MEMBERS + 1)}}).encode()
    async with secure(world) as (reader, writer):
        writer.write(head(f"Authorization: Bearer {await token(world)}", f"Content-Length: {len(many)}") + many)
        status, text = await answer(reader)
    assert (status, "without repeated keys" in text) == (400, True)


async def test_a_worker_may_send_in_pieces(world: World) -> None:
    async with secure(world) as (reader, writer):
        writer.write(head(f"Authorization: Bearer {await token(world)}", "Transfer-Encoding: chunked"))
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert (await answer(reader))[0] == 200


async def test_nothing_is_unpacked(world: World) -> None:
    packed = gzip.compress(BODY)
    async with secure(world) as (reader, writer):
        sent = (
            f"Authorization: Bearer {await token(world)}",
            "Content-Encoding: gzip",
            f"Content-Length: {len(packed)}",
        )
        writer.write(head(*sent) + packed)
        assert (await answer(reader))[0] == 400


async def test_a_token_that_is_too_large_is_refused_by_the_gate(world: World) -> None:
    async with secure(world) as (reader, writer):
        writer.write(head(f"Authorization: Bearer {'a' * 8_193}", f"Content-Length: {len(BODY)}") + BODY)
        status, text = await answer(reader)
        assert (status, json.loads(text)["error"]) == (401, "invalid_token")
    assert [record.reason for record in world.records()] == ["TokenTooLarge"]


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer " + "eyJhbGciOiJF.eyJzdWIiOiJ4." * 1_000,
        "Authorization: Bearer eyJhbGciOiJF.eyJzdWIiOiJ4.\x00",
        "Author ization: Bearer eyJhbGciOiJF.eyJzdWIiOiJ4.c2ln",
        "eyJhbGciOiJF.eyJzdWIiOiJ4.c2ln",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\nAuthorization: Bearer eyJhbGciOiJF.eyJzdWIiOiJ4.c2ln",
    ],
    ids=["too long", "NUL", "broken name", "no name", "smuggled"],
)
async def test_what_is_no_http_is_not_quoted(world: World, caplog: pytest.LogCaptureFixture, line: str) -> None:
    caplog.set_level(logging.DEBUG)
    async with secure(world) as (reader, writer):
        writer.write(head(line))
        status, text = await answer(reader)
        assert (status, json.loads(text)) == (400, {"error": "InvalidInput", "message": "this is not HTTP", "opid": ""})
        assert await reader.read() == b""
    assert "no HTTP from 127.0.0.1" in caplog.text
    assert "eyJ" not in caplog.text
    assert not [entry for entry in caplog.records if entry.levelno > logging.DEBUG]


@pytest.mark.parametrize(
    ("sent", "more"),
    [
        (head("Content-Length: 100") + b"{", b""),
        (head("Transfer-Encoding: chunked") + b"1\r\n{\r\n", b""),
        (head("Transfer-Encoding: chunked") + b"1\r\n{\r\n", b"no chunk\r\n"),
    ],
    ids=["length", "chunks", "no chunk"],
)
async def test_who_goes_away_within_a_body_is_no_fault_of_ours(
    world: World, caplog: pytest.LogCaptureFixture, sent: bytes, more: bytes
) -> None:
    """Else anybody could fill the log with our traces."""
    sent = sent.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {await token(world)}\r\n\r\n".encode(), 1)
    async with secure(world) as (_, writer):
        writer.write(sent)
        assert await world.call("execution.join", await token(world), JOIN.wire())
        writer.write(more)
        assert await world.call("execution.join", await token(world), JOIN.wire())
        writer.transport.abort()
        assert await world.call("execution.join", await token(world), JOIN.wire())
    await world.server.stop()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
