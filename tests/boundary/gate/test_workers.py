"""A worker's way: its bundle, the front door, the feed."""

import time
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import Decision
from kuangchao_contracts.run import FeedReply, JoinReply
from kuangchao_contracts.tokens import TokenVerifier
from tests.boundary.gate.plane import ISSUER, JOB, JOIN, POD, World


async def test_a_worker_joins_over_https(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    assert "eyJ" not in repr(bundle)
    status, answer = await world.call("execution.join", bundle.token("agent", "kc:execution"), JOIN.wire())
    assert (status, answer) == (200, JoinReply(ready=False, waiting_for="nobody", attempt=1).wire())
    intent, result = world.records()
    assert (intent.opid, intent.subject) == (result.opid, f"agent:team-a/digits/{POD.name}")


async def test_every_lease_of_a_bundle_is_good_for_its_calls_and_no_other(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    assert sorted(bundle.tokens) == [
        "agent/kc:execution", "agent/kc:interface", "agent/kc:state",
        "rank/kc:execution", "rank/kc:state", "rank/kc:topology",
    ]  # fmt: skip
    verifier = TokenVerifier(world.trust.keys, ISSUER)
    for key, token in bundle.tokens.items():
        role, audience = key.split("/")
        claims, _ = verifier.verify(token, audience)
        assert (claims.role, claims.pod, claims.att, claims.one) == (role, POD.name, 1, False)
        assert claims.holds_ranks([0, 1])
        assert not claims.holds_ranks([2])
    assert (await world.call("state.restore_point", bundle.token("agent", "kc:state"), {"attempt": 1}))[0] == 200
    for role, audience in (("rank", "kc:state"), ("agent", "kc:execution"), ("agent", "kc:interface")):
        assert (await world.call("state.restore_point", bundle.token(role, audience), {"attempt": 1}))[0] in (401, 403)
    with pytest.raises(e.MalformedTokenError):
        bundle.token("rank", "kc:interface")


async def test_exchange_gives_one_commit(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    lease = bundle.token("agent", "kc:interface")
    wanted = {"op": "state.commit_checkpoint", "resource": JOB.resource}
    status, answer = await world.call("interface.exchange", lease, wanted)
    assert status == 200
    claims, _ = TokenVerifier(world.trust.keys, ISSUER).verify(answer["token"], "kc:state")
    parent, _ = TokenVerifier(world.trust.keys, ISSUER).verify(lease, "kc:interface")
    assert (claims.par, claims.one, claims.att, claims.pod) == (parent.jti, True, 1, POD.name)
    commit = {
        "path": "step-1.att-1",
        "manifest": {},
    }
    assert (await world.call("state.commit_checkpoint", answer["token"], commit))[0] == 400  # not used up: nothing done
    assert (await world.call("state.commit_checkpoint", lease, commit))[0] == 401
    assert world.state.commits == 0


@pytest.mark.parametrize(
    "wanted",
    [
        {"op": "execution.launch", "resource": JOB.resource},
        {"op": "state.restore_point", "resource": JOB.resource},
        {"op": "state.nothing", "resource": JOB.resource},
        {"op": "state.commit_checkpoint", "resource": "team-a/jobs/other"},
        {"op": "state.commit_checkpoint", "resource": "team-b/jobs/digits"},
        {"op": "state.commit_checkpoint", "resource": "*"},
    ],
)
async def test_exchange_gives_nothing_else(world: World, wanted: dict[str, Any]) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    status, answer = await world.call("interface.exchange", bundle.token("agent", "kc:interface"), wanted)
    assert (status, answer["error"]) == (403, "denied")
    result = world.records()[-1]
    assert (result.decision, result.reason) == (Decision.DENY, "ExchangeDenied")


async def test_feed_tells_a_late_worker_that_it_is_late(world: World) -> None:
    bundle = (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]
    lease = bundle.token("agent", "kc:interface")
    world.fence.set(JOB.uid, 2)
    world.fence.take_back({"A" * 22: int(time.time()) + 60}, ())
    status, answer = await world.call("interface.feed", lease)
    assert status == 200
    feed = FeedReply.model_validate(answer)
    assert (feed.attempt, feed.policy_generation, feed.revoked) == (2, 1, ("A" * 22,))
    assert (await world.call("execution.join", bundle.token("agent", "kc:execution"), JOIN.wire()))[0] == 401
    world.fence.close(JOB.uid)
    assert (await world.call("interface.feed", lease))[1]["attempt"] == 0
    world.fence.set(JOB.uid, 2)
    assert world.fence.attempt(JOB.uid) is None
    world.fence.set(JOB.uid, 3)
    assert world.fence.attempt(JOB.uid) == 3
