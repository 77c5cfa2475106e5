"""What the node agent says to the API server, word by word, against an HTTP server that answers as it is told."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client
from tests.unit.resource.test_decide import cpu_node

from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import HostCapacity
from kuangchao_contracts.errors import ConflictError, UnavailableError
from kuangchao_operator.layers.resource.agent.cluster import KubernetesCluster, node_label, object_name, selected

BASE = "/apis/kuangchao.io/v1alpha1"


class Server:
    """Answers by (method, path); keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []

    def on(self, method: str, path: str, status: int = 200, body: Any = None) -> None:
        self.answers.setdefault((method, path), []).append((status, body if body is not None else {}))

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.asked.append((request.method, request.path, dict(request.query), json.loads(text) if text else None))
        answers = self.answers[request.method, request.path]
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.json_response(body, status=status)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, KubernetesCluster]]:
    told = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", told.handle)
    async with TestServer(app) as http:
        configuration = client.Configuration(host=str(http.make_url("/")).rstrip("/"))
        async with client.ApiClient(configuration) as api:
            yield told, KubernetesCluster(api)


async def test_host_reads_the_node_and_only_its_own_pods(server: tuple[Server, KubernetesCluster]) -> None:
    told, cluster = server
    told.on(
        "GET",
        "/api/v1/nodes/n1",
        body={"metadata": {"labels": {"zone": "a"}}, "status": {"allocatable": {"cpu": "3920m", "memory": "1Gi"}}},
    )
    told.on(
        "GET",
        "/api/v1/pods",
        body={
            "items": [
                {
                    "metadata": {},
                    "spec": {"containers": [{"resources": {"requests": {"cpu": "100m", "memory": "70Mi"}}}]},
                },
                {
                    "metadata": {"labels": {"kuangchao.io/job": "j"}},
                    "spec": {"containers": [{"resources": {"requests": {"cpu": "3"}}}]},
                },
            ]
        },
    )
    capacity, labels = await cluster.host("n1")
    assert capacity == HostCapacity(
        allocatable_milli_cpu=3920, allocatable_memory_bytes=2**30, others_milli_cpu=100, others_memory_bytes=70 * 2**20
    )
    assert labels == {"zone": "a"}
    assert told.asked[1][2] == {"fieldSelector": "spec.nodeName=n1", "resourceVersion": "0"}


async def test_limits_come_from_the_pools_that_select_the_node(server: tuple[Server, KubernetesCluster]) -> None:
    told, cluster = server

    def pool(name: str, **spec: Any) -> dict[str, Any]:
        return {"apiVersion": "kuangchao.io/v1alpha1", "kind": "ResourcePool", "metadata": {"name": name}, "spec": spec}

    told.on(
        "GET",
        f"{BASE}/resourcepools",
        body={
            "metadata": {"continue": "more"},
            "items": [
                pool("mine", nodeSelector={"zone": "a"}, health={"maxTemperatureCelsius": 80}),
                pool("other", nodeSelector={"zone": "b"}, health={"maxTemperatureCelsius": 50}),
                pool("newer", fieldOfTomorrow=1, health={"maxTemperatureCelsius": 40}),
            ],
        },
    )
    told.on(
        "GET",
        f"{BASE}/resourcepools",
        body={"metadata": {}, "items": [pool("second page", nodeSelector={}, health={"maxTemperatureCelsius": 70})]},
    )
    assert await cluster.limits({"zone": "a"}) == HealthThresholds(max_temperature_celsius=70)
    assert [asked[2].get("continue") for asked in told.asked] == [None, "more"]


async def test_a_descriptor_survives_the_way_to_the_server_and_back(server: tuple[Server, KubernetesCluster]) -> None:
    told, cluster = server
    path = f"{BASE}/resourcedescriptors"
    told.on("POST", path, status=201)
    await cluster.publish(cpu_node("n1", generation=4))
    body = told.asked[0][3]
    assert body["metadata"] == {"name": "n1-4", "labels": {"kuangchao.io/node": "n1"}}
    assert (body["kind"], body["apiVersion"]) == ("ResourceDescriptor", "kuangchao.io/v1alpha1")
    told.on("GET", path, body={"metadata": {}, "items": [{**body, "status": {"unknown": 1}}]})
    assert [d.canonical() for d in await cluster.descriptors("n1")] == [cpu_node("n1", generation=4).canonical()]
    assert told.asked[1][2]["labelSelector"] == "kuangchao.io/node=n1"


async def test_collecting_what_is_gone_is_success(server: tuple[Server, KubernetesCluster]) -> None:
    told, cluster = server
    told.on("DELETE", f"{BASE}/resourcedescriptors/n1-3", status=404)
    await cluster.collect("n1", 3)
    assert told.asked[0][:2] == ("DELETE", f"{BASE}/resourcedescriptors/n1-3")


async def test_refusals_are_typed(server: tuple[Server, KubernetesCluster]) -> None:
    told, cluster = server
    told.on("POST", f"{BASE}/resourcedescriptors", status=409)
    with pytest.raises(ConflictError):
        await cluster.publish(cpu_node("n1"))
    told.on("GET", "/api/v1/nodes/n1", status=403, body={"message": "nodes is forbidden"})
    with pytest.raises(UnavailableError, match="403 nodes is forbidden"):
        await cluster.host("n1")
    told.on("DELETE", f"{BASE}/resourcedescriptors/n1-3", status=500)
    with pytest.raises(UnavailableError, match="500"):
        await cluster.collect("n1", 3)


async def test_a_server_that_is_not_there_is_unavailable(unused_tcp_port: int) -> None:
    configuration = client.Configuration(host=f"http://127.0.0.1:{unused_tcp_port}")
    async with client.ApiClient(configuration) as api:
        with pytest.raises(UnavailableError):
            await KubernetesCluster(api).descriptors("n1")


def test_names_and_labels() -> None:
    assert object_name("n1", 7) == "n1-7"
    assert node_label("n1") == "n1"
    long = "x" * 100
    assert len(node_label(long)) == 63
    assert node_label(long) != node_label(long + "y")
    assert selected({}, {"a": "b"})
    assert not selected({"a": "c"}, {"a": "b"})
