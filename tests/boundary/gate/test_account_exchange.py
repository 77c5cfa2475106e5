"""Corpus 63: account tokens at the real gate, reviews as an API server answered them; the worker's own client asks."""

from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts import names
from kuangchao_contracts.audit import Decision, Stage, now
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_contracts.wire import TokenBundle
from kuangchao_operator.gate.accountdoor import AccountDoor
from kuangchao_operator.gate.accounts import AccountExchange
from kuangchao_operator.gate.limits import FailureLimits
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.tokenreview import TokenReviews
from kuangchao_operator.kube.workerpods import CachedWorkerPods
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.pod.tokens import TokenFile
from tests.boundary.gate.plane import ISSUER, World
from tests.unit.kube import bodies, reviews
from tests.unit.kube.bodies import UID

NAME = names.pod_name("j", UID, 0, 1)
PUID = f"pod-{NAME}"
TOKEN = "aaaa.bbbb.cccc"


class Site:
    """The gate with an exchange, an API server that answers as recorded, and a pod in the cache."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.cache, self.folder = world, Cache(), folder
        self.answer: dict[str, Any] | Exception = reviews.of("ns", NAME, PUID)
        self.see(status={"attempt": 3, "incarnation": 0})
        self.see_pod()
        world.fence.set(UID, 3)

    def see(self, **job: Any) -> None:
        self.cache.see("TrainingJob", bodies.job(**job))

    def see_pod(self, attempt: int = 3, version: int = 1, **metadata: Any) -> None:
        body = bodies.pod(name=NAME, index=1, version=version)
        body["metadata"].update(metadata)
        body["metadata"]["labels"][names.LABEL_ATTEMPT] = str(attempt)
        body["spec"]["serviceAccountName"] = "default"
        self.cache.see("Pod", body)

    async def request(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The API server."""
        assert body["spec"]["token"] == TOKEN
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def exchange(self, token: str = TOKEN) -> TokenBundle:
        """As the agent of the pod does it."""
        async with GateClient(self.url, TokenFile(self.folder), self.folder / "ca.crt") as client:
            return await client.exchange_account(token)

    async def start(self) -> None:
        world, api = self.world, self
        reviewer: Any = api
        exchange = AccountExchange(
            TokenReviews(reviewer), CachedWorkerPods(self.cache), world.fence, world.tokens, world.sink,
            now, "operator", FailureLimits(lambda: 0.0),
        )  # fmt: skip
        self.server = world.another_server(others=AccountDoor(exchange.exchange).routes())
        self.url = f"https://127.0.0.1:{await self.server.start('127.0.0.1', 0, world.certificate.context)}"


@pytest.fixture
async def site(world: World, tmp_path: Path) -> Any:
    made = Site(world, tmp_path)
    await made.start()
    yield made
    await made.server.stop()


async def test_the_bundle_is_that_of_a_secret_and_names_the_pods_uid(site: Site) -> None:
    bundle = await site.exchange()
    assert sorted(bundle.tokens) == [
        "agent/kc:execution", "agent/kc:interface", "agent/kc:state",
        "rank/kc:execution", "rank/kc:state", "rank/kc:topology",
    ]  # fmt: skip
    verifier = TokenVerifier(site.world.trust.keys, ISSUER)
    claims, _ = verifier.verify(bundle.token("agent", "kc:execution"), "kc:execution")
    assert (claims.pod, claims.puid, claims.ranks, claims.att, claims.juid) == (NAME, PUID, "1", 3, UID)
    assert (bundle.attempt, bundle.expires) == (3, claims.exp)


def default_audience(site: Site) -> None:
    site.answer = reviews.DEFAULT_AUDIENCE


def no_audience(site: Site) -> None:
    site.answer["status"]["audiences"] = []  # type: ignore[index]  # a body


def other_account(site: Site) -> None:
    site.answer = reviews.of("ns", NAME, PUID, account="other")


def unbound(site: Site) -> None:
    site.answer = reviews.UNBOUND


def garbage(site: Site) -> None:
    site.answer = reviews.GARBAGE


def terminating(site: Site) -> None:
    site.see_pod(version=2, deletionTimestamp="2026-01-01T00:00:00Z")


def made_anew(site: Site) -> None:
    site.see_pod(version=2, uid="a-later-pod")


def gone(site: Site) -> None:
    site.cache.missing("Pod", NAME, "ns")


def old_attempt(site: Site) -> None:
    site.see_pod(version=2, attempt=2)


def attempt_over(site: Site) -> None:
    site.world.fence.set(UID, 4)


def closed(site: Site) -> None:
    site.world.fence.close(UID)


def revoked(site: Site) -> None:
    site.world.fence.take_back({}, [UID])


CASES = [
    default_audience, no_audience, other_account, unbound, garbage, terminating, made_anew, gone, old_attempt,
    attempt_over, closed, revoked,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
async def test_corpus_63(site: Site, case: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One denial, one record, one and the same answer, and the token in none of them."""
    case(site)
    async with site.world.session() as session:
        post = session.post(f"{site.url}/v1/token", headers={"Authorization": f"Bearer {TOKEN}"})
        async with post as response:
            answer = await response.json()
    assert (response.status, answer["error"], answer["message"]) == (403, "denied", "")
    assert response.headers["Cache-Control"] == "no-store"
    (record,) = site.world.records()
    assert (record.op, record.stage, record.decision) == ("token.exchange", Stage.DENY, Decision.DENY)
    assert (record.reason, record.opid) == ("ExchangeDenied", answer["opid"])
    assert TOKEN not in record.canonical().decode() + caplog.text
    with pytest.raises(e.ExchangeDeniedError):
        await site.exchange()


async def test_headers_that_hold_no_token_and_an_api_server_that_is_away(site: Site) -> None:
    async with site.world.session() as session:
        for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer Bearer {TOKEN}"}):
            async with session.post(f"{site.url}/v1/token", headers=headers) as response:
                assert response.status == 403
    assert {record.subject for record in site.world.records()} == {"unverified"}
    site.answer = e.UnavailableError("away")
    with pytest.raises(e.UnavailableError):
        await site.exchange()
