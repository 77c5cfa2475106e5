"""Trust is published everywhere: a namespace that refuses it holds up no other, and gets it as soon as it takes it."""

from typing import Any, cast

from kuangchao_operator.kube.client import KubeApi, NotFoundError, RefusedError
from kuangchao_operator.kube.trust import TrustPublisher
from kuangchao_operator.kube.writer import Writer


class Api:
    """Takes what is written, except in namespaces that refuse it."""

    def __init__(self) -> None:
        self.faults: dict[str, Exception] = {}
        self.written: list[str] = []
        self.keys: dict[str, str] = {}

    async def request(self, method: str, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        namespace = body["metadata"]["namespace"]
        assert (method, path) == ("PATCH", f"/api/v1/namespaces/{namespace}/configmaps/kuangchao-trust")
        self.written.append(namespace)
        if namespace in self.faults:
            raise self.faults[namespace]
        self.keys[namespace] = body["data"]["jwks.json"]
        return {}


async def publish(publisher: TrustPublisher, keys: str, *namespaces: str) -> None:
    await publisher.update("ca", keys, "{}", "{}", "kuangchao/test", namespaces)


async def test_where_it_was_refused_it_is_written_as_soon_as_that_is_over() -> None:
    api = Api()
    publisher = TrustPublisher(Writer(cast(KubeApi, api)))
    await publish(publisher, "old", "team-a", "team-b", "team-c")
    api.faults["team-b"] = RefusedError(403, "a webhook says no")
    await publish(publisher, "new")
    assert api.keys == {"team-a": "new", "team-b": "old", "team-c": "new"}
    api.written.clear()
    await publisher.retry()
    del api.faults["team-b"]
    for _ in range(2):
        await publisher.retry()
    assert api.written == ["team-b"] * 2, "where it is, it is not written again"
    assert api.keys["team-b"] == "new"


async def test_a_namespace_that_is_gone_is_left() -> None:
    api = Api()
    publisher = TrustPublisher(Writer(cast(KubeApi, api)))
    api.faults["team-a"] = NotFoundError("gone")
    await publish(publisher, "old", "team-a")
    await publisher.retry()
    await publish(publisher, "new")
    assert api.written == ["team-a"]
