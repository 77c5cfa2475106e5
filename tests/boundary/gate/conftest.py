"""One issuer process for all files here, one control plane for each test."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kuangchao_operator.gate.issuer_client import IssuerClient
from tests.boundary.gate.plane import ENVIRONMENT, World, issuer_arguments
from tests.unit.authority.kit import TOKEN


@pytest.fixture(scope="package")
def issuer_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of an issuer process that serves all tests of this folder."""
    home = tmp_path_factory.mktemp("issuer")
    command = [sys.executable, "-m", "kuangchao_operator.signing", *issuer_arguments(home)]
    with (home / "log").open("wb") as log:
        child = subprocess.Popen(command, env=ENVIRONMENT, stderr=log)
    try:
        yield home
    finally:
        child.terminate()
        assert child.wait(20) == 0
    text = (home / "log").read_text()
    assert "issuer listens" in text
    assert not TOKEN.search(text)
    assert not (home / "issuer.sock").exists()


@pytest.fixture
async def world(tmp_path: Path, issuer_home: Path) -> AsyncIterator[World]:
    async with IssuerClient(issuer_home / "issuer.sock") as issuer:
        await issuer.wait_ready(60)
        world = World(tmp_path, issuer)
        await world.start()
        yield world
        await world.stop()
