"""The policy towards the API server: who wrote it, the Event of a fault, and the copy that ranks mount."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from kuangchao_contracts.errors import UnavailableError
from kuangchao_contracts.policy import BUILT_IN, Policy
from kuangchao_operator.kube.client import KubeApi, NotFoundError, RefusedError
from kuangchao_operator.kube.events import EventWriter
from kuangchao_operator.kube.policy import PolicyConfigMap
from kuangchao_operator.kube.trust import TrustPublisher
from kuangchao_operator.kube.writer import Writer

NAMESPACE = "kuangchao-system"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/kuangchao-policy"


def managed(manager: str, time: str, key: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:data": {f"f:{key}": {}}}}


WRITTEN = {
    "metadata": {
        "managedFields": [
            {"manager": "helm", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
            managed("kubectl-edit", "2026-02-01T00:00:00Z", "policy.yaml"),
            managed("somebody", "2026-03-01T00:00:00Z", "notes"),
        ]
    }
}


class Api:
    """Answers or raises what it is given; remembers what was asked."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer
        self.sent: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        self.sent.append((method, path, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def get(self, path: str) -> dict[str, Any] | None:
        try:
            return await self.request("GET", path)
        except NotFoundError:
            return None


def document(api: Api) -> PolicyConfigMap:
    kube = cast(KubeApi, api)
    clock: Callable[[], datetime] = lambda: datetime(2026, 1, 31, tzinfo=UTC)  # noqa: E731  # shorter than a function
    return PolicyConfigMap(kube, EventWriter(kube, clock), NAMESPACE)


async def test_the_author_is_the_last_manager_of_the_document() -> None:
    api = Api(WRITTEN)
    assert await document(api).author() == "kubectl-edit at 2026-02-01T00:00:00Z"
    assert api.sent == [("GET", PATH, None)]


@pytest.mark.parametrize(
    "answer",
    [NotFoundError("gone"), RefusedError(403, "no"), UnavailableError("away"), {"metadata": {}}],
    ids=lambda answer: type(answer).__name__,
)
async def test_an_author_who_cannot_be_read_stays_unknown(answer: Any) -> None:
    assert await document(Api(answer)).author() == ""


async def test_a_fault_is_an_event_on_the_document() -> None:
    api = Api({})
    await document(api).stale("grant x: " + "y" * 5_000)
    ((method, path, event),) = api.sent
    assert (method, path) == ("POST", f"/api/v1/namespaces/{NAMESPACE}/events")
    assert (event["type"], event["reason"]) == ("Warning", "PolicyStale")
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("ConfigMap", "kuangchao-policy")
    assert event["message"].startswith("grant x: ")
    assert len(event["message"]) == 1_024


async def test_an_event_that_cannot_be_written_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    await document(Api(RefusedError(403, "no events"))).stale("fault")
    assert "no events" in caplog.text


async def test_ranks_find_the_policy_beside_the_keys() -> None:
    api = Api({})
    await TrustPublisher(Writer(cast(KubeApi, api))).update(
        ca="ca",
        jwks="{}",
        policy=BUILT_IN.canonical().decode(),
        issuer="kuangchao/test",
        audit_keys="{}",
        namespaces=["team-a"],
    )
    ((_, path, body),) = api.sent
    assert path == "/api/v1/namespaces/team-a/configmaps/kuangchao-trust"
    assert Policy.model_validate_json(body["data"]["policy.json"]) == BUILT_IN
    assert body["data"]["jwks.json"] == "{}"
