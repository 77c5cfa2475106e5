"""Corpus 17 and 65, T10 and T18 at the real gate: what is taken back is refused at the next call, cached or not."""

import asyncio
import time

import pytest

from kuangchao_contracts.errors import InvalidAudienceError
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.run import Empty
from kuangchao_contracts.tokens import TokenVerifier, parse_claims, parse_strict
from kuangchao_contracts.wire import TokenBundle
from tests.boundary.gate.plane import ISSUER, JOB, JOIN, POD, World

AUDIENCES = ("kc:resource", "kc:topology", "kc:strategy", "kc:execution", "kc:state", "kc:governance", "kc:interface")


async def bundle(world: World) -> TokenBundle:
    return (await world.tokens.worker_bundles(JOB, 1, [POD]))[0]


async def outcome(world: World, held: TokenBundle) -> tuple[int, str]:
    """Status of a join and the reason in its record."""
    status, _ = await world.call("execution.join", held.token("agent", "kc:execution"), JOIN.wire())
    return status, world.records()[-1].reason


async def test_a_token_and_a_job_are_refused_with_a_warm_cache(world: World) -> None:
    """Corpus 65."""
    held = await bundle(world)
    assert await outcome(world, held) == (200, "")
    jti = parse_claims(parse_strict(held.token("agent", "kc:execution"))[1]).jti
    world.fence.take_back({jti: int(time.time()) + 300}, ())
    assert await outcome(world, held) == (401, "RevokedToken")
    world.fence.take_back({}, [JOB.uid])
    assert await outcome(world, held) == (401, "RevokedToken")
    assert (await world.call("interface.feed", held.token("agent", "kc:interface")))[0] == 401
    world.fence.take_back({}, ())
    assert await outcome(world, held) == (200, "")


async def test_what_a_token_was_exchanged_for_is_taken_back_with_it(world: World) -> None:
    """Whoever stole the lease exchanges it before it is taken back."""
    lease = (await bundle(world)).token("agent", "kc:interface")
    wanted = {"op": "state.commit_checkpoint", "resource": JOB.resource}
    status, answer = await world.call("interface.exchange", lease, wanted)
    assert status == 200
    world.fence.take_back({parse_claims(parse_strict(lease)[1]).jti: int(time.time()) + 300}, ())
    assert (await world.call("state.commit_checkpoint", answer["token"], {}))[0] == 401
    assert world.records()[-1].reason == "RevokedToken"


async def test_a_layer_goes_on_ending_a_job_whose_workers_are_taken_back(world: World) -> None:
    world.fence.take_back({}, [JOB.uid])
    token = await world.tokens.token(Layer.EXECUTION, JOB, "execution.reclaim")
    assert await world.gate.call(token, "execution.reclaim", JOB.resource, Empty())


async def test_a_denied_key_is_refused_at_once_and_its_successor_is_good_at_once(world: World) -> None:
    """Corpus 17, T18: calls are made all the time while the key is denied; not one of its tokens passes afterwards."""
    held = await bundle(world)
    kid = parse_strict(held.token("agent", "kc:execution"))[0]["kid"]
    denied, after = asyncio.Event(), list[tuple[int, str]]()

    async def knock() -> None:
        for _ in range(40):
            known = denied.is_set()
            found = await outcome(world, held)
            if known:
                after.append(found)

    async def deny() -> None:
        await world.trust.deny(kid)
        denied.set()

    assert await outcome(world, held) == (200, "")
    await asyncio.gather(knock(), deny())
    assert after
    assert set(after) == {(401, "RevokedKey")}
    assert kid in world.published[-1].jwks.denied
    assert kid not in [key.kid for key in world.published[-1].jwks.keys]
    assert await outcome(world, await bundle(world)) == (200, "")
    feed = (await world.call("interface.feed", (await bundle(world)).token("agent", "kc:interface")))[1]
    assert kid in feed["deniedKids"]
    assert feed["jwks"]["denied"] == feed["deniedKids"]


async def test_a_stolen_lease_is_good_for_one_audience_only(world: World) -> None:
    """T10."""
    held, verifier = await bundle(world), TokenVerifier(world.trust.keys, ISSUER)
    for key, token in held.tokens.items():
        for audience in AUDIENCES:
            if not key.endswith(audience):
                with pytest.raises(InvalidAudienceError):
                    verifier.verify(token, audience)
