"""What a new operator finds of a job that an interrupted operation was about."""

from typing import Any, cast

import pytest

from kuangchao_contracts import names
from kuangchao_operator.kube import paths
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.client import KubeApi
from kuangchao_operator.kube.truth import KubeTruth
from tests.unit.kube.bodies import UID, job, pod

SERVICE = paths.item("Service", names.service_name("j", UID), "ns")


class Api:
    """An API server that has these objects."""

    def __init__(self, *there: str) -> None:
        self.there, self.asked = there, list[str]()

    async def get(self, path: str) -> dict[str, Any] | None:
        self.asked.append(path)
        return {"kind": "Service"} if path in self.there else None


def truth(api: Api, *bodies: dict[str, Any]) -> KubeTruth:
    cache = Cache()
    for body in bodies:
        cache.see(body["kind"], body)
    return KubeTruth(cast(KubeApi, api), cache)


async def test_the_job_its_own_pods_and_its_service() -> None:
    api = Api(SERVICE)
    mine, foreign = pod("p0"), pod("p1", index=1, owner="somebody-else")
    found = await truth(api, job(), mine, foreign).of("ns/jobs/j", UID)
    assert found is not None
    assert found.job.metadata.uid == UID
    assert [fact.name for fact in found.pods] == ["p0"]
    assert found.service


async def test_a_service_that_is_gone() -> None:
    found = await truth(Api(), job()).of("ns/jobs/j", "-")
    assert found is not None
    assert not found.service


@pytest.mark.parametrize(
    ("resource", "uid"),
    [
        ("ns/jobs/other", UID),
        ("elsewhere/jobs/j", UID),
        ("ns/jobs/j", "a-namesake-before"),
        ("_cluster/audit/records", "-"),
        ("not a resource", UID),
    ],
)
async def test_a_job_that_is_gone_and_what_is_about_no_job(resource: str, uid: str) -> None:
    api = Api(SERVICE)
    assert await truth(api, job(), pod()).of(resource, uid) is None
    assert api.asked == []
