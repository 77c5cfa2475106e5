"""What is read of a TokenReview, what is asked, and what an API server that does not answer means."""

from copy import deepcopy
from typing import Any

import pytest

from kuangchao_contracts.errors import UnavailableError
from kuangchao_operator.gate.accounts import AccountReview
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.client import RefusedError
from kuangchao_operator.kube.tokenreview import TokenReviews, read_review
from kuangchao_operator.kube.workerpods import CachedWorkerPods
from tests.unit.kube import bodies, reviews


def test_a_token_that_is_bound_to_a_pod() -> None:
    assert read_review(reviews.POD) == AccountReview(
        authenticated=True,
        audiences=("kuangchao-token-exchange",),
        user="system:serviceaccount:default:default",
        pod="digits-abcdef-0-0",
        pod_uid="ffb12b0f-77f4-47b3-a1e0-cea3eac0205d",
    )


@pytest.mark.parametrize("body", [reviews.DEFAULT_AUDIENCE, reviews.GARBAGE, {}, {"status": None}])
def test_whoever_is_not_known_is_nobody(body: dict[str, Any]) -> None:
    assert read_review(body) == AccountReview()


def test_without_a_pod_there_is_an_account_and_no_pod() -> None:
    found = read_review(reviews.UNBOUND)
    assert (found.authenticated, found.pod, found.pod_uid) == (True, "", "")


@pytest.mark.parametrize("values", [[], ["a", "b"], "digits", None])
def test_an_extra_field_with_other_than_one_value_counts_for_none(values: Any) -> None:
    body = deepcopy(reviews.POD)
    body["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"] = values
    assert read_review(body).pod == ""


@pytest.mark.parametrize("value", ["true", 1, None])
def test_only_true_is_authenticated(value: Any) -> None:
    body = deepcopy(reviews.POD)
    body["status"]["authenticated"] = value
    assert not read_review(body).authenticated


class Api:
    """Answers one call."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, ()

    async def request(self, *call: Any) -> Any:
        self.asked = call
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_our_audience_is_asked_for() -> None:
    api: Any = Api(reviews.POD)
    assert (await TokenReviews(api).review("a.b.c")).authenticated
    method, path, body = api.asked
    assert (method, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert body["spec"] == {"token": "a.b.c", "audiences": ["kuangchao-token-exchange"]}


@pytest.mark.parametrize("error", [UnavailableError("away"), RefusedError(403, "forbidden")])
async def test_no_answer_and_no_right_to_ask_are_no_denial(error: Exception) -> None:
    api: Any = Api(error)
    with pytest.raises(UnavailableError):
        await TokenReviews(api).review("a.b.c")


def cache(**changes: Any) -> Cache:
    made = Cache()
    made.see("TrainingJob", bodies.job(status={"attempt": 1, "incarnation": 0}))
    body = bodies.pod(name="j-e2a1f0-0-1", index=1, **changes)
    body["spec"]["serviceAccountName"] = "default"
    made.see("Pod", body)
    return made


def test_a_pod_of_a_job_out_of_the_cache() -> None:
    found = CachedWorkerPods(cache()).find("ns", "j-e2a1f0-0-1")
    assert found is not None
    assert (found.ref.ranks, found.ref.uid) == ((1,), "pod-j-e2a1f0-0-1")
    assert (found.job.uid, found.account, found.attempt, found.recorded) == (bodies.UID, "default", 1, (1, 0))
    assert found.deleting is False


def test_a_name_that_is_not_ours_and_a_foreign_owner_are_not_ours() -> None:
    from kuangchao_contracts import names

    ours = names.pod_name("j", bodies.UID, 0, 1)
    for name, owner, expected in ((ours, bodies.UID, True), ("j-x", bodies.UID, False), (ours, "other", False)):
        made = cache()
        body = bodies.pod(name=name, index=1, owner=owner)
        made.see("Pod", body)
        found = CachedWorkerPods(made).find("ns", name)
        assert found is not None
        assert found.ours is expected


def test_what_is_not_there_is_not_found() -> None:
    pods = CachedWorkerPods(cache())
    assert pods.find("ns", "other") is None
    assert pods.find("elsewhere", "j-e2a1f0-0-1") is None
    gone = cache()
    gone.missing("TrainingJob", "j", "ns")
    assert CachedWorkerPods(gone).find("ns", "j-e2a1f0-0-1") is None
    again = cache()
    again.see("TrainingJob", bodies.job(version=9, uid="a-later-job"))
    assert CachedWorkerPods(again).find("ns", "j-e2a1f0-0-1") is None
