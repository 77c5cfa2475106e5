"""Who may exchange an account token for a bundle: one pod that is entitled, and every way not to be."""

import asyncio
import base64
import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import Decision, Stage
from kuangchao_contracts.wire import ACCOUNT_AUDIENCE, TokenBundle
from kuangchao_operator.gate.accounts import (
    APART_SECONDS,
    KNOWN_SECONDS,
    POD_BURST,
    REVIEWS_AT_ONCE,
    STRANGERS_BURST,
    AccountExchange,
    AccountReview,
    WorkerPod,
    entitle,
)
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.limits import BURST, FailureLimits
from kuangchao_operator.gate.minting import JobRef, PodRef
from tests.unit.authority.kit import Clock, MemorySink

JOB = JobRef("team-a", "digits", "uid-1")
REVIEW = AccountReview(
    authenticated=True,
    audiences=(ACCOUNT_AUDIENCE,),
    user="system:serviceaccount:team-a:default",
    pod="digits-1-2-0",
    pod_uid="pod-uid",
)
POD = WorkerPod(
    ref=PodRef("digits-1-2-0", (0, 1), "pod-uid"),
    job=JOB,
    account="default",
    ours=True,
    deleting=False,
    attempt=3,
    incarnation=2,
    recorded=(3, 2),
)
TOKEN = "aaa.bbb.ccc"


def test_the_pod_of_the_current_attempt_is_entitled() -> None:
    assert entitle(REVIEW, POD, 3, revoked=False) is POD


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], int | None, bool]] = {
    "not authenticated": ({"authenticated": False}, {}, 3, False),
    "no audience: good for the API server": ({"audiences": ()}, {}, 3, False),
    "default audience": ({"audiences": ("https://kubernetes.default.svc",)}, {}, 3, False),
    "bound to no pod": ({"pod": "", "pod_uid": ""}, {}, 3, False),
    "bound to a name only": ({"pod_uid": ""}, {}, 3, False),
    "a person": ({"user": "alice"}, {}, 3, False),
    "another account": ({"user": "system:serviceaccount:team-a:other"}, {}, 3, False),
    "another namespace's account": ({"user": "system:serviceaccount:team-b:default"}, {}, 3, False),
    "an account with a colon": ({"user": "system:serviceaccount:team-a:default:x"}, {}, 3, False),
    "another pod of the name": ({"pod_uid": "older"}, {}, 3, False),
    "not made by the job": ({}, {"ours": False}, 3, False),
    "terminating": ({}, {"deleting": True}, 3, False),
    "label of an old attempt": ({}, {"attempt": 2}, 3, False),
    "label of an attempt to come": ({}, {"attempt": 4}, 3, False),
    "old incarnation": ({}, {"recorded": (3, 3)}, 3, False),
    "the recorded attempt has moved on": ({}, {"recorded": (4, 2)}, 3, False),
    "the fence has moved on": ({}, {}, 4, False),
    "the fence is closed": ({}, {}, None, False),
    "the job has no status": ({}, {"recorded": None}, 3, False),
    "the job is revoked": ({}, {}, 3, True),
}


@pytest.mark.parametrize("case", WRONG)
def test_everybody_else_is_not(case: str) -> None:
    review, pod, attempt, revoked = WRONG[case]
    with pytest.raises(e.ExchangeDeniedError):
        entitle(replace(REVIEW, **review), replace(POD, **pod), attempt, revoked=revoked)
    with pytest.raises(e.ExchangeDeniedError):
        entitle(REVIEW, None, 3, revoked=False)


class World:
    """An exchange over values that a test sets."""

    def __init__(self) -> None:
        self.review_answer: AccountReview | Exception = REVIEW
        self.pod: WorkerPod | None = POD
        self.reviewed, self.token, self.now, self.slow = 0, TOKEN, 0.0, False
        self.fence, self.sink = JobFence(), MemorySink()
        self.fence.set(JOB.uid, 3)
        self.minted: list[tuple[JobRef, int, list[PodRef]]] = []
        tokens: Any = self
        self.exchange = AccountExchange(
            self,
            self,
            self.fence,
            tokens,
            self.sink,
            Clock().moment,
            "operator",
            FailureLimits(Clock()),
            lambda: self.now,
        )

    async def review(self, token: str) -> AccountReview:
        assert token == self.token or token.startswith("proven.")
        self.reviewed += 1
        if self.slow:
            await asyncio.sleep(0)
        if isinstance(self.review_answer, Exception):
            raise self.review_answer
        return self.review_answer

    def find(self, namespace: str, name: str) -> WorkerPod | None:
        return self.pod if (namespace, name) == ("team-a", "digits-1-2-0") else None

    async def worker_bundles(self, job: JobRef, attempt: int, pods: list[PodRef]) -> tuple[TokenBundle, ...]:
        self.minted.append((job, attempt, pods))
        return (TokenBundle(tokens={}, attempt=attempt, expires=1),)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_bundle_is_bound_to_the_pods_uid_and_recorded(world: World) -> None:
    assert (await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")).attempt == 3
    assert world.minted == [(JOB, 3, [POD.ref])]
    record = world.sink.records[0]
    assert (record.op, record.opid, record.decision) == ("token.exchange", "op-1", Decision.ALLOW)
    assert (record.subject, record.job_uid, record.detail) == (
        "agent:team-a/digits/digits-1-2-0",
        "uid-1",
        "pod uid pod-uid",
    )


@pytest.mark.parametrize("token", [None, "", "a.b", "a.b.c.d", "a.b.c\n", "x" * 9_000, "a." + "b" * 9_000 + ".c"])
async def test_what_is_no_token_reaches_nobody(world: World, token: str | None) -> None:
    with pytest.raises(e.ExchangeDeniedError):
        await world.exchange.exchange(token, "op-1", "10.0.0.1")
    assert [(r.stage, r.subject) for r in world.sink.records] == [(Stage.DENY, "unverified")]
    assert world.minted == []


async def test_a_denial_is_one_record_with_the_reason_and_no_token(world: World) -> None:
    world.pod = replace(POD, deleting=True)
    with pytest.raises(e.ExchangeDeniedError):
        await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")
    (record,) = world.sink.records
    assert (record.stage, record.reason, record.detail) == (Stage.DENY, "ExchangeDenied", "the pod is being deleted")
    assert record.subject == "account:system:serviceaccount:team-a:default"
    assert TOKEN not in record.canonical().decode()
    assert world.minted == []


async def test_a_denial_stays_one_while_the_store_is_away(world: World) -> None:
    world.sink.broken, world.pod = True, None
    with pytest.raises(e.ExchangeDeniedError):
        await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")


async def test_nobody_who_can_say_is_no_denial(world: World) -> None:
    world.review_answer = e.UnavailableError("the API server is away")
    with pytest.raises(e.UnavailableError):
        await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")
    assert world.sink.records == []


async def test_a_revoked_job_gets_nothing(world: World) -> None:
    world.fence.take_back({}, [JOB.uid])
    with pytest.raises(e.ExchangeDeniedError):
        await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")


async def test_a_flood_of_tokens_that_nobody_knows_costs_no_more_reviews(world: World) -> None:
    world.review_answer = AccountReview()
    for number in range(int(BURST) + 5):
        world.token = f"forged.{number}.x"
        with pytest.raises(e.ExchangeDeniedError):
            await world.exchange.exchange(world.token, "op-1", "10.0.0.1")
    assert world.reviewed == BURST
    world.review_answer, world.token = REVIEW, TOKEN
    with pytest.raises(e.ExchangeDeniedError):
        await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")
    assert await world.exchange.exchange(TOKEN, "op-1", "10.0.0.2"), "others are not concerned"


async def test_a_pod_that_had_its_bundle_renews_it_behind_the_address_of_a_flood(world: World) -> None:
    await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")
    world.review_answer = AccountReview()
    for number in range(int(BURST) + 5):
        world.token = f"forged.{number}.x"
        with pytest.raises(e.ExchangeDeniedError):
            await world.exchange.exchange(world.token, "op-1", "10.0.0.1")
    assert world.reviewed == 1 + BURST
    world.review_answer, world.token = REVIEW, TOKEN
    world.now += APART_SECONDS
    assert await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")
    world.now += KNOWN_SECONDS
    with pytest.raises(e.ExchangeDeniedError):
        await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")


@pytest.mark.parametrize("deleting", [False, True])
async def test_one_account_token_costs_no_more_than_two_reviews_a_second(world: World, deleting: bool) -> None:
    """Whoever holds a good one must not keep API server and issuer busy with it."""
    world.pod = replace(POD, deleting=deleting)
    for _ in range(3):
        for _ in range(5):
            with contextlib.suppress(e.ExchangeDeniedError):
                await world.exchange.exchange(TOKEN, "op-1", "10.0.0.1")
        world.now += APART_SECONDS
    assert world.reviewed == 3
    assert len(world.minted) == (0 if deleting else 3)
    assert len(world.sink.records) == 15, "each answer is on record"


def proven(number: int, review: AccountReview = REVIEW) -> str:
    """One of as many good tokens as whoever may use TokenRequest asks for."""
    pod = {"name": review.pod, "uid": review.pod_uid}
    says = {"sub": review.user, "jti": str(number), "kubernetes.io": {"pod": pod} if review.pod else {}}
    return f"proven.{base64.urlsafe_b64encode(json.dumps(says).encode()).decode().rstrip('=')}.x"


async def flood(world: World, review: AccountReview, reviews: int) -> None:
    """Come with many good tokens, from everywhere; so many of them cost a review."""
    before, world.review_answer = world.reviewed, review
    for number in range(reviews + 20):
        with contextlib.suppress(e.ExchangeDeniedError):
            await world.exchange.exchange(proven(number, review), "op-1", f"10.0.1.{number}")
    assert world.reviewed - before == reviews


STRANGERS = {
    "bound to no pod": replace(REVIEW, pod="", pod_uid=""),
    "bound to a pod of their own": replace(REVIEW, pod="mine", pod_uid="mine-uid"),
    "bound to an older pod of that name": replace(REVIEW, pod_uid="older"),
    "for another audience": replace(REVIEW, pod="", pod_uid="", audiences=()),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
async def test_a_namespace_costs_few_reviews_and_its_jobs_lose_nothing(world: World, stranger: AccountReview) -> None:
    """Also by many accounts: whoever may make tokens in a namespace may make accounts."""
    await flood(world, stranger, int(STRANGERS_BURST))
    other = replace(stranger, user="system:serviceaccount:team-a:another")
    await flood(world, other, 0)
    world.review_answer = REVIEW
    assert await world.exchange.exchange(proven(0), "op-1", "10.0.0.1"), "the job's own pod has a share of its own"
    await flood(world, replace(stranger, user="system:serviceaccount:team-b:default"), int(STRANGERS_BURST))


async def test_tokens_that_come_all_at_once_do_not_outrun_the_bound(world: World) -> None:
    """Each is charged when the API server has answered: those under way are few."""
    stranger = STRANGERS["bound to no pod"]
    world.review_answer, world.slow = stranger, True
    tokens = [proven(number, stranger) for number in range(300)]
    calls = [world.exchange.exchange(token, "op-1", f"10.0.2.{n % 250}") for n, token in enumerate(tokens)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, e.ExchangeDeniedError) for answer in answers)
    assert STRANGERS_BURST <= world.reviewed <= STRANGERS_BURST + REVIEWS_AT_ONCE


async def test_a_pod_gets_few_bundles_by_however_many_tokens(world: World) -> None:
    await flood(world, REVIEW, int(POD_BURST))
    assert len(world.minted) == POD_BURST
    world.now += APART_SECONDS
    assert await world.exchange.exchange(proven(0), "op-1", "10.0.0.1"), "one that had a bundle renews it"
    world.now += 60
    assert await world.exchange.exchange(proven(10_000), "op-1", "10.0.0.1"), "and in time so does a new one"


async def test_who_only_claims_to_be_a_pod_takes_nothing_from_it(world: World) -> None:
    world.review_answer = AccountReview()
    for number in range(int(BURST)):
        with pytest.raises(e.ExchangeDeniedError):
            await world.exchange.exchange(proven(number), "op-1", f"10.0.1.{number}")
    world.review_answer = REVIEW
    assert await world.exchange.exchange(proven(-1), "op-1", "10.0.0.1")


async def test_somebody_who_is_no_account_counts_as_a_failure_of_his_address(world: World) -> None:
    world.review_answer = replace(REVIEW, user="alice")
    for number in range(int(BURST) + 5):
        with pytest.raises(e.ExchangeDeniedError):
            await world.exchange.exchange(f"proven.{number}.x", "op-1", "10.0.0.1")
    assert world.reviewed == BURST


@pytest.mark.parametrize("middle", ["", "!!", "bnVsbA", "W10", "e30", "eyJrdWJlcm5ldGVzLmlvIjoxfQ", "W1tb" * 2000])
async def test_claims_that_cannot_be_read_are_none(world: World, middle: str) -> None:
    with contextlib.suppress(e.ExchangeDeniedError):
        await world.exchange.exchange(f"proven.{middle}.x", "op-1", "10.0.0.1")
