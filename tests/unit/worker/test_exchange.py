"""The agent's exchange of account tokens: when it asks, how it waits, what it leaves on disk and says in its log."""

import asyncio
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from kuangchao_contracts.errors import ExchangeDeniedError, UnavailableError
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.run import FeedReply
from kuangchao_contracts.tokens import parse_claims, parse_strict
from kuangchao_contracts.wire import TOKEN_PATH, ErrorReply, TokenBundle
from kuangchao_worker.agent import exchange
from kuangchao_worker.agent.exchange import TokenPuller
from kuangchao_worker.agent.vigil import Held, Vigil, expiry_warning, to_ranks
from kuangchao_worker.pod.revocations import RevocationFile, Revocations
from kuangchao_worker.pod.tokens import TokenFile
from tests.unit.worker.fakegate import PATIENCE, Cluster, Issuer, make_launch, make_plan

NOW = 1_000.0


class World:
    """A gate that answers as a test says, and time that passes only by sleeping."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.chance = NOW, 0.5
        self.answers: list[Exception | int] = []
        self.asked: list[tuple[float, str]] = []
        self.account = folder / "account"
        self.account.write_text("aaa.bbb.ccc\n")
        self.tokens = TokenFile(folder)
        self.file = folder / "bundle.json"
        gate: Any = self
        self.puller = TokenPuller(self.account, gate, self.tokens, lambda: self.now, lambda: self.chance)

    async def exchange_account(self, account_token: str) -> TokenBundle:
        self.asked.append((self.now, account_token))
        answer = self.answers.pop(0) if self.answers else 300
        if isinstance(answer, Exception):
            raise answer
        return TokenBundle(tokens={"agent/kc:state": "t"}, attempt=1, expires=int(self.now) + answer)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


async def test_the_bundle_is_readable_by_its_owner_alone_and_replaced_as_a_whole(world: World) -> None:
    for expected in (1, 2):
        await world.puller.pull()
        assert stat.S_IMODE(world.file.stat().st_mode) == 0o400
        assert world.tokens.read().attempt == 1
        assert len(world.asked) == expected
    assert [path.name for path in sorted(world.file.parent.iterdir())] == ["account", "bundle.json"]


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 135.0), (0.5, 150.0), (1.0, 165.0)])
async def test_renewal_is_at_half_life_with_jitter(world: World, chance: float, pause: float) -> None:
    world.chance = chance
    assert await world.puller.pull() == pytest.approx(pause)


async def test_failures_are_tried_again_after_1_2_4_up_to_15_seconds_and_leave_the_old_bundle(world: World) -> None:
    await world.puller.pull()
    before = world.file.read_bytes()
    world.answers = [UnavailableError("away"), ExchangeDeniedError("no"), *[UnavailableError("away")] * 4]
    assert [await world.puller.pull() for _ in range(6)] == [1, 2, 4, 8, 15, 15]
    assert world.file.read_bytes() == before
    assert await world.puller.pull() == pytest.approx(150)
    world.answers = [UnavailableError("away")]
    assert await world.puller.pull() == 1


async def test_the_account_token_is_read_each_time_since_the_kubelet_renews_it(world: World) -> None:
    await world.puller.pull()
    world.account.write_text("new.er.token")
    await world.puller.pull()
    assert [token for _, token in world.asked] == ["aaa.bbb.ccc", "new.er.token"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
async def test_an_account_token_that_cannot_be_read_is_a_failure_like_others(
    world: World, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        world.account.unlink()
    else:
        world.account.write_bytes(content)
    assert await world.puller.pull() == 1
    assert world.asked == []
    assert "no tokens by exchange" in caplog.text


async def test_whoever_is_refused_may_ask_at_once_and_not_all_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    gone = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.puller.hurry()
        if len(world.asked) == 3:
            gone.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(exchange.asyncio, "sleep", sleep)
    keeping = asyncio.ensure_future(world.puller.keep())
    await asyncio.wait_for(gone.wait(), PATIENCE)
    keeping.cancel()
    assert slept == [exchange.LEAST_PAUSE] * 3, "asked for three times, a little apart, and never for half a life"


async def test_whoever_asks_while_it_fails_does_not_shorten_the_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    gone = asyncio.Event()
    world.answers = [ExchangeDeniedError("no")] * 9

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.puller.hurry()
        if len(slept) == 5:
            gone.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(exchange.asyncio, "sleep", sleep)
    keeping = asyncio.ensure_future(world.puller.keep())
    await asyncio.wait_for(gone.wait(), PATIENCE)
    keeping.cancel()
    assert slept == [1, 2, 4, 8, 15]


@pytest.mark.parametrize(
    ("left", "words"),
    [(300, None), (90, None), (89, "expire in 89 s"), (1, "expire in 1 s"), (-30, "expired 30 s ago")],
)
def test_the_end_of_leases_is_said_before_it_comes(left: float, words: str | None) -> None:
    said = expiry_warning(NOW + left, NOW)
    assert said is None if words is None else words in (said or "")


def test_ranks_hear_of_a_denied_key_with_their_new_leases_and_not_before() -> None:
    jwks = Jwks(keys=(), denied=("old",))
    answer = FeedReply(attempt=1, policy_generation=1, revoked=("j",), denied_kids=("old",), jwks=jwks)
    told = Revocations(tokens=frozenset({"j"}))
    for keys, heard in (
        ({"old"}, told),
        ({"old", "new"}, told),
        ({"new"}, told.replace(keys=frozenset({"old"}), jwks=jwks)),
    ):
        assert to_ranks(answer, Held(frozenset(), frozenset(keys))) == heard


async def test_a_token_that_the_pod_holds_is_renewed_before_its_ranks_are_told(tmp_path: Path) -> None:
    issuer, asked = Issuer(), list[str]()
    old, new = issuer.bundle("pod-0", 1), issuer.bundle("pod-0", 1)
    jti = parse_claims(parse_strict(old.token("rank", "kc:state"))[1]).jti
    feed = FeedReply(attempt=1, policy_generation=1, revoked=(jti, "j" * 22))

    async def call(*_: Any) -> FeedReply:
        return feed

    client: Any = SimpleNamespace(call=call)
    vigil = Vigil(client, TokenFile(tmp_path), tmp_path, lambda: asked.append("renew"))
    ranks = RevocationFile(tmp_path)
    for bundle, told, renewals in ((old, {"j" * 22}, 1), (new, {jti, "j" * 22}, 1)):
        (tmp_path / "bundle.json").write_bytes(bundle.canonical())
        await vigil.look()
        assert ranks.refresh()
        assert (ranks.current.tokens, len(asked)) == (told, renewals)


class ExchangeCluster(Cluster):
    """Pods mount no Secret: their agents bring an account token to the gate. The first one it does not take."""

    def write_tokens(self, attempt: int) -> None:
        self.current, self.exchanged = attempt, list[int]()
        (self.folder / "t0").mkdir(exist_ok=True)
        (self.folder / "account").write_text("aaa.bbb.ccc")

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.post(TOKEN_PATH, self._exchange)]

    async def _exchange(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer aaa.bbb.ccc"
        self.exchanged.append(self.current)
        if len(self.exchanged) == 1:
            return web.json_response(ErrorReply(error="denied").wire(), status=403)
        return web.json_response(self.issuer.bundle("pod-0", self.current).wire())

    def environment(self, index: int) -> dict[str, str]:
        account = {"KUANGCHAO_ACCOUNT_TOKEN": str(self.folder / "account"), "KUANGCHAO_POD_UID": "uid-of-pod-0"}
        return {**super().environment(index), **account}


SCRIPT = """
import os, sys
from pathlib import Path
seen = [name for name in os.environ if name == "KUANGCHAO_ACCOUNT_TOKEN"]
sys.exit(len(seen) or (3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0))
"""


async def test_an_agent_lives_through_its_attempts_by_exchange_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = make_launch(make_plan(1, batch=1), None, command=(str(script),))
    async with ExchangeCluster(tmp_path, launch, restarts=1) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        assert cluster.current == 2, cluster.logs()
        assert {beat.join.attempt for beat in cluster.control.beats} == {1, 2}
        assert {beat.join.pod_uid for beat in cluster.control.beats} == {"uid-of-pod-0"}
        assert stat.S_IMODE((tmp_path / "t0" / "bundle.json").stat().st_mode) == 0o400
        assert "aaa.bbb.ccc" not in cluster.logs()
