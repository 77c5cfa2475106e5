"""The node agent as a process under the chart's account, on a real API server where no operator has ever run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.fakes import ENVIRONMENT, account_config, eventually, install
from tests.api.server import API, PATIENCE, ApiServer, Object, RefusedError

ACCOUNT = "kuangchao-node-agent"
USER = f"system:serviceaccount:kuangchao-system:{ACCOUNT}"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server of its own with the chart on it: its Deployments have no node and never run."""
    server = ApiServer(tmp_path_factory.mktemp("agents") / "api", os.getpid())
    install(server)
    yield server
    server.close()


class Node:
    """A Node object and the agent that describes it."""

    def __init__(self, server: ApiServer, directory: Path, name: str) -> None:
        self.server, self.name = server, name
        self._log, self._config = directory / "log", directory / "kubeconfig"
        self._config.write_text(account_config(server, ACCOUNT))
        self._config.chmod(0o600)
        self._process: subprocess.Popen[bytes] | None = None
        server.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"site": name}}})

    def offers(self, cpu: str) -> None:
        """What its kubelet would write."""
        change = {"status": {"allocatable": {"cpu": cpu, "memory": "8Gi"}}}
        self.server.request("PATCH", f"/api/v1/nodes/{self.name}/status", change, "application/merge-patch+json")

    def start(self) -> None:
        """Start the agent with the chart's account, and nothing else to log in with."""
        environment = ENVIRONMENT | {"NODE_NAME": self.name, "KUBECONFIG": str(self._config)}
        command = [sys.executable, "-m", "kuangchao_operator.layers.resource.agent"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def stop(self) -> int:
        """SIGTERM; its exit status. What has ended already is fine."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def descriptors(self) -> list[Object]:
        """Its descriptors, oldest generation first."""
        found = self.server.request("GET", f"{API}/resourcedescriptors")["items"]
        mine = [item for item in found if item["spec"]["node"] == self.name]
        return sorted(mine, key=lambda item: int(item["spec"]["generation"]))

    def wait(self, generation: int) -> Object:
        """Wait until one descriptor is left, and it is of this generation. An agent looks every 10 s and believes a
        change when it has seen it twice."""

        def only() -> Object | None:
            found = self.descriptors()
            return found[0] if [item["spec"]["generation"] for item in found] == [generation] else None

        return eventually(only, lambda: f"generation {generation}\n{self._log.read_text()}")


@pytest.fixture
def node(plane: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(plane, tmp_path, request.node.name.removeprefix("test_").replace("_", "-"))
    made.offers("4")
    made.start()
    yield made
    assert made.stop() == 0


def test_node_is_described_and_each_change_is_a_new_generation(node: Node) -> None:
    first = node.wait(1)
    assert first["metadata"]["name"] == f"{node.name}-1"
    assert first["metadata"]["labels"] == {"kuangchao.io/node": node.name}
    assert first["spec"]["host"]["allocatableMilliCpu"] == 4000
    assert first["spec"]["host"]["allocatableMemoryBytes"] == 8 * 2**30
    assert {device["kind"] for device in first["spec"]["devices"]} == {"cpu"}

    node.offers("3")
    second = node.wait(2)
    assert second["metadata"]["name"] == f"{node.name}-2"
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["host"]["allocatableMilliCpu"] == 3000


def test_restarted_agent_goes_on_from_what_is_published(node: Node) -> None:
    first = node.wait(1)
    assert node.stop() == 0
    assert [item["metadata"]["uid"] for item in node.descriptors()] == [first["metadata"]["uid"]]
    node.offers("2")
    node.start()
    assert node.wait(2)["spec"]["host"]["allocatableMilliCpu"] == 2000


def test_published_descriptor_cannot_be_changed_by_anybody(node: Node) -> None:
    published = node.wait(1)
    path = f"{API}/resourcedescriptors/{published['metadata']['name']}"
    change = {"spec": {"host": {"allocatableMilliCpu": 64_000}}}
    with pytest.raises(RefusedError, match="a descriptor is immutable; a change is a new object"):
        node.server.request("PATCH", path, change, "application/merge-patch+json")
    with pytest.raises(RefusedError, match="cannot patch resource"):
        node.server.request("PATCH", path, change, "application/merge-patch+json", user=USER)
    with pytest.raises(RefusedError, match="cannot update resource"):
        node.server.request("PUT", path, published, user=USER)
    assert node.server.request("GET", path)["spec"] == published["spec"]
