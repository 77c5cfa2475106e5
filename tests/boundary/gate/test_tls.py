"""Public endpoints, and the certificate before all."""

import asyncio
import contextlib
import ssl

import aiohttp
import pytest

from kuangchao_contracts.keys import Jwks
from tests.boundary.gate.plane import World


async def test_public_endpoints_and_tls(world: World) -> None:
    async with world.session() as session:
        async with session.get(f"{world.url}/healthz") as response:
            assert await response.text() == "ok"
        async with session.get(f"{world.url}/v1/jwks") as response:
            keys = Jwks.model_validate(await response.json())
        assert keys == world.trust.jwks() == world.published[-1].jwks
        port = world.url.rsplit(":", 1)[1]
        with pytest.raises(aiohttp.ClientConnectorError):  # not a name of the certificate
            await session.get(f"https://localhost:{port}/healthz")
    async with aiohttp.ClientSession() as stranger:
        with pytest.raises(aiohttp.ClientConnectorError):  # not a CA that the system knows
            await stranger.get(f"{world.url}/healthz")
    before = await served_certificate(world)
    await world.certificate.renew()
    assert await served_certificate(world) != before


async def served_certificate(world: World) -> bytes:
    tls = ssl.create_default_context(cafile=world.directory / "ca.crt")
    port = int(world.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    served: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return served
