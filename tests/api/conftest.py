"""api fixtures: one real API server for the session, with the CRDs as they are committed."""

import os
from collections.abc import Iterator

import pytest

from tests.api.server import ROOT, ApiServer


@pytest.fixture(scope="session")
def bare_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server without anything of ours."""
    server = ApiServer(tmp_path_factory.mktemp("bare") / "api", os.getpid())
    yield server
    server.close()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server that serves our four kinds."""
    server = ApiServer(tmp_path_factory.mktemp("ours") / "api", os.getpid())
    server.kubectl("apply", "--server-side", "-f", ROOT / "crds")
    server.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", ROOT / "crds")
    yield server
    server.close()
