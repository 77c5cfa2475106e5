"""What follows the issuer's policy: the operator's gate, its records, the bundles that it asks for, the front door."""

from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.keys import Jwks, KeySet
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.minting import MintedToken, PolicyReply
from kuangchao_contracts.policy import BUILT_IN, Policy, PolicyBook
from kuangchao_contracts.run import Empty, ExchangeRequest
from kuangchao_contracts.tokens import TokenVerifier, parse_claims, parse_strict
from kuangchao_contracts.wire import TokenBundle
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.frontdoor import FrontDoor
from kuangchao_operator.gate.minting import JobRef, LayerTokens, PodRef
from kuangchao_operator.gate.policy import MAX_IDS, PolicyLoop, describe
from kuangchao_operator.policy.reader import read_policy
from kuangchao_operator.signing.keystore import KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PUBLISH_SECONDS, PolicyKeeper
from tests.unit.authority.kit import ISSUER, JOB, JUID, NS, RESOURCE, Clock, FixedFence, MemorySink
from tests.unit.authority.policies import NARROW, OBSERVER, STRICT
from tests.unit.contracts.test_gate import JOIN, Execution

POD = PodRef("w-0", (0, 1), None)
REF = JobRef(NS, JOB, JUID)


class World:
    """Issuer, operator's gate and its policy loop in one process; the file is what an administrator writes."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.fence, self.sink, self.folder = Clock(), FixedFence(), MemorySink(), folder
        self.file = folder / "policy.yaml"
        self.file.write_text("extends: built-in")
        self.keeper = PolicyKeeper(folder / "kept", self.file, self.clock)
        keys = KeyStore(folder / "keys", self.clock)
        self.minter = Minter(keys, ISSUER, self.clock, self.keeper)
        self.policies = PolicyBook()
        verifier = TokenVerifier(KeySet(keys.jwks()), ISSUER, self.clock)
        self.gate = Gate("test", verifier, self.fence, self.sink, self.clock.moment, self.policies)
        self.gate.register(Execution())
        self.tokens = LayerTokens(self, self.fence, self.clock, self.policies)
        self.published: list[Policy] = []
        self.told: list[str] = []
        self.api_down = False
        self.loop = self.follow()

    def follow(self) -> PolicyLoop:
        """The loop of an operator that has just started."""
        return PolicyLoop(
            self, self.policies, self.folder / "mark.json", self.sink, "test", self.clock.moment,
            self.publish, self.author, self.tell,
        )  # fmt: skip

    async def policy(self) -> PolicyReply:
        return self.keeper.reply()

    async def publish(self) -> None:
        if self.api_down:
            raise e.UnavailableError("test")
        self.published.append(self.policies.current)

    async def author(self) -> str:
        return "kubectl-edit at 2027-01-15T08:00:00Z"

    async def tell(self, problem: str) -> None:
        self.told.append(problem)

    async def mint(self, requests: Any) -> tuple[MintedToken, ...]:
        return tuple(self.minter.mint(request) for request in requests)

    async def write(self, text: str) -> None:
        """An administrator writes the file; issuer and operator look."""
        self.file.write_text(text)
        self.keeper.tick()
        await self.loop.refresh()

    def reloads(self) -> list[AuditRecord]:
        return [record for record in self.sink.records if record.op == "policy.reload"]

    async def join(self, token: str) -> Any:
        return await self.gate.call(token, "execution.join", RESOURCE, JOIN)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.loop.refresh()
    world.sink.records.clear()
    return world


async def agent_token(world: World) -> str:
    bundle = (await world.tokens.worker_bundles(REF, 3, [POD]))[0]
    return bundle.token("agent", "kc:execution")


async def test_a_right_that_is_taken_away_is_gone_at_the_next_call_though_the_token_is_remembered(world: World) -> None:
    token = await agent_token(world)
    await world.join(token)
    await world.write(NARROW)
    with pytest.raises(e.StalePolicyError):
        await world.join(token)
    await world.write("extends: built-in\n")
    await world.join(token)


async def test_whoever_keeps_the_right_keeps_the_token(world: World) -> None:
    token = await agent_token(world)
    await world.write(STRICT)
    world.clock.now += PUBLISH_SECONDS
    assert world.policies.current.generation == 3
    await world.join(token)
    await world.join(await agent_token(world))


async def test_a_right_less_costs_a_pod_no_other(world: World) -> None:
    before = (await world.tokens.worker_bundles(REF, 3, [POD]))[0]
    await world.write(NARROW.replace("execution.join", "execution.join, execution.heartbeat"))
    after = (await world.tokens.worker_bundles(REF, 3, [POD]))[0]
    assert before.tokens.keys() - after.tokens.keys() == {"agent/kc:execution"}
    await world.write("grants: []")
    nothing = (await world.tokens.worker_bundles(REF, 3, [POD]))[0]
    assert nothing == TokenBundle(tokens={}, attempt=3, expires=0)


async def test_a_layer_brings_a_one_shot_where_policy_demands_one(world: World) -> None:
    await world.write(STRICT)
    claims = [
        parse_claims(parse_strict(await world.tokens.token(Layer.EXECUTION, REF, "strategy.plan"))[1]) for _ in "ab"
    ]
    assert [claim.one for claim in claims] == [True, True]
    assert claims[0].jti != claims[1].jti


async def test_the_front_door_asks_the_policy_of_the_moment(world: World) -> None:
    fence = JobFence()
    fence.set(JUID, 3)
    door = FrontDoor(world, fence, world.clock, lambda: Jwks(keys=()), world.policies)
    token = (await world.tokens.worker_bundles(REF, 3, [POD]))[0].token("agent", "kc:interface")
    claims = parse_claims(parse_strict(token)[1])
    capability = Capability(claims=claims, kid="k", op="interface.exchange", resource=RESOURCE, opid="o")
    wanted = ExchangeRequest(op="state.commit_checkpoint", resource=RESOURCE)
    assert (await door.exchange(capability, wanted)).token
    await world.write(NARROW.replace("execution.join", "state.commit_checkpoint"))
    with pytest.raises(e.ExchangeDeniedError, match="PermissionDenied"):
        await door.exchange(capability, wanted)
    assert (await door.feed(capability, Empty())).policy_generation == 3


async def test_a_reload_is_one_record_that_says_what_and_who(world: World) -> None:
    old = world.policies.current
    await world.write(NARROW)
    await world.loop.refresh()
    (record,) = world.reloads()
    new = world.policies.current
    assert (record.stage, record.decision, record.policy) == (Stage.SYSTEM, Decision.ALLOW, 3)
    assert record.request_sha256 == new.sha256
    for part in (
        "generation 2 -> 3",
        f"sha256 {old.sha256} -> {new.sha256}",
        "added no-joins; removed none; changed none",
        "by kubectl-edit at 2027-01-15T08:00:00Z",
    ):
        assert part in record.detail
    assert world.published[-1] == new


async def test_a_start_is_no_reload_and_a_change_meanwhile_is_one(world: World) -> None:
    await world.follow().refresh()
    assert world.reloads() == []
    world.file.write_text(NARROW)
    world.keeper.tick()
    await world.follow().refresh()
    assert [record.policy for record in world.reloads()] == [3]
    await world.follow().refresh()
    assert len(world.reloads()) == 1


async def test_a_store_that_fails_delays_the_record_and_not_the_policy(world: World) -> None:
    token = await agent_token(world)
    world.sink.broken = True
    with pytest.raises(e.AuditUnavailableError):
        await world.write(NARROW)
    assert world.published[-1].generation == 3
    world.sink.broken = False
    with pytest.raises(e.StalePolicyError):
        await world.join(token)
    await world.loop.refresh()
    assert [record.policy for record in world.reloads()] == [3]


async def test_an_api_server_that_is_away_delays_publishing_and_not_the_policy(world: World) -> None:
    world.api_down = True
    with pytest.raises(e.UnavailableError):
        await world.write(NARROW)
    assert not world.policies.current.permits("agent", "execution.join")
    world.api_down = False
    await world.loop.refresh()
    assert (world.published[-1].generation, len(world.reloads())) == (3, 1)


async def test_a_broken_file_is_told_once_and_recorded(world: World, caplog: pytest.LogCaptureFixture) -> None:
    old = world.policies.current
    await world.write(OBSERVER)
    await world.loop.refresh()
    assert world.loop.stale
    assert world.policies.current == old
    assert len(world.told) == 1
    assert "governance only reads" in world.told[0]
    assert caplog.text.count("PolicyStale") == 1
    (record,) = world.reloads()
    assert (record.decision, record.reason) == (Decision.ERROR, "PolicyStale")
    assert "governance only reads" in record.detail
    await world.write("extends: built-in")
    assert not world.loop.stale
    await world.write(OBSERVER)
    assert len(world.told) == 2


def test_a_record_has_room_for_any_number_of_rules() -> None:
    text = "denies:\n" + "".join(
        f"  - {{id: rule-{i:050d}, subject: agent, operations: [execution.join], resources: ['task:owned']}}\n"
        for i in range(400)
    )
    new = read_policy("policy.yaml", text.encode(), 2)
    detail = describe(BUILT_IN, new, "x" * 500)
    assert len(detail) <= 1024
    assert f"and {400 - MAX_IDS // 56} more" in detail
