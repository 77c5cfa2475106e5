"""api fixtures: one real API server for the session, with the CRDs as they are committed."""

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.api import people
from tests.api.fakes import Operator, Site, install
from tests.api.server import PATIENCE, ROOT, ApiServer

_NUMBERS = itertools.count(1)


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
    server.kubectl("wait", "--for=condition=Established", f"--timeout={PATIENCE:.0f}s", "-f", ROOT / "crds")
    yield server
    server.close()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with garbage collection and quotas, and the chart's CRDs, accounts and policies."""
    server = ApiServer(tmp_path_factory.mktemp("plane") / "api", os.getpid(), controllers=True)
    install(server, "admission.operatorAccounts={system:serviceaccount:kuangchao-system:confined}")
    yield server
    server.close()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server whose policies know administrators and are in force, with people to whom RBAC grants everything."""
    server = ApiServer(tmp_path_factory.mktemp("guarded") / "api", os.getpid(), controllers=True)
    install(server, *people.VALUES)
    people.grant(server)
    people.in_force(server)
    yield server
    server.close()


@pytest.fixture(scope="session")
def operator(control_plane: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Issuer and operator as processes of their own."""
    made = Operator(control_plane, tmp_path_factory.mktemp("operator"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def site(control_plane: ApiServer, operator: Operator, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A namespace and a pool of two nodes with two devices each; `@pytest.mark.parametrize` may say other nodes."""
    nodes = getattr(request, "param", {"a": 2, "b": 2})
    made = Site(control_plane, operator, f"s{next(_NUMBERS)}", nodes)
    made.settle()
    yield made
    made.remove()
