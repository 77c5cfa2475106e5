"""The gate in one process: who gets through, what is recorded, and what never is."""

import asyncio
import logging
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditPage, AuditQuery, Decision, Stage
from kuangchao_contracts.auditproof import ProveReply, ProveRequest, VerifyReport, VerifyRequest
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.policy import BUILT_IN, PolicyBook
from kuangchao_contracts.ports.execution import ContextView, ExecutionControl, ExecutionRank, LaunchRequest, StopRequest
from kuangchao_contracts.ports.governance import GovernanceControl
from kuangchao_contracts.run import (
    Ack,
    Empty,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
)
from kuangchao_contracts.text import recordable
from tests.unit.authority.kit import JUID, NS, RESOURCE, Clock, FixedFence, MemorySink, Signer

JOIN = JoinRequest(attempt=3, incarnation=0, pod_index=0, pod="w-0", host="127.0.0.1")
LAYER: dict[str, Any] = {"sub": "layer:execution", "pod": ..., "ranks": ...}
AGENT: dict[str, Any] = {"aud": "kc:execution", "cap": [{"op": "execution.join", "res": RESOURCE}]}


class Execution(ExecutionControl):
    """Counts what was done; `fails` makes join raise."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fails: Exception | None = None
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def launch(self, capability: Capability, request: LaunchRequest) -> Ack:
        self.done.append("launch")
        return Ack()

    async def stop(self, capability: Capability, request: StopRequest) -> Ack:
        self.done.append("stop")
        return Ack()

    async def reclaim(self, capability: Capability, request: Empty) -> Ack:
        self.done.append("reclaim")
        return Ack()

    async def join(self, capability: Capability, request: JoinRequest) -> JoinReply:
        self.entered.set()
        await self.go_on.wait()
        capability.require_pod(request.pod)
        self.done.append("join")
        if self.fails:
            raise self.fails
        return JoinReply(ready=False, attempt=request.attempt)

    async def heartbeat(self, capability: Capability, request: HeartbeatRequest) -> HeartbeatReply:
        capability.require_ranks(report.rank for report in request.ranks)
        raise e.ConflictError("no such gang")


class Governance(GovernanceControl):
    async def query(self, capability: Capability, request: AuditQuery) -> AuditPage:
        return AuditPage(records=())

    async def verify(self, capability: Capability, request: VerifyRequest) -> VerifyReport:
        raise NotImplementedError

    async def prove(self, capability: Capability, request: ProveRequest) -> ProveReply:
        raise NotImplementedError


class World:
    """A gate with everything around it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.signer = Signer(self.clock)
        self.fence, self.sink, self.execution = FixedFence(), MemorySink(), Execution()
        self.policies = PolicyBook()
        self.gate = Gate("test", self.signer.verifier(), self.fence, self.sink, self.clock.moment, self.policies)
        self.gate.register(self.execution)
        self.gate.register(Governance())

    def launch_token(self, **claims: Any) -> str:
        return self.signer.one_shot("execution.launch", **(LAYER | claims))

    async def launch(self, token: str | None, resource: str = RESOURCE) -> Any:
        request = LaunchRequest(attempt=3, incarnation=0, plan_hash="0" * 64)
        return await self.gate.call(token, "execution.launch", resource, request)

    async def join(self, resource: str = RESOURCE, **claims: Any) -> Any:
        return await self.gate.call(self.signer.token(**(AGENT | claims)), "execution.join", resource, JOIN)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_control_call_is_recorded_before_and_after(world: World) -> None:
    world.execution.go_on.clear()
    call = asyncio.create_task(world.join())
    await world.execution.entered.wait()
    assert [r.stage for r in world.sink.records] == [Stage.INTENT]
    world.execution.go_on.set()
    await call
    intent, result = world.sink.records
    assert (intent.decision, result.decision, result.stage) == (Decision.ERROR, Decision.ALLOW, Stage.RESULT)
    assert intent.opid == result.opid
    assert (result.subject, result.job, result.job_uid, result.attempt) == (f"agent:{NS}/digits/w-0", "digits", JUID, 3)
    assert len(result.request_sha256) == 64


async def test_no_record_no_action(world: World) -> None:
    world.sink.broken = True
    with pytest.raises(e.AuditUnavailableError):
        await world.launch(world.launch_token())
    assert world.execution.done == []


async def test_a_denial_stays_a_denial_without_a_store(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.sink.broken = True
    with pytest.raises(e.StaleEpochError):
        await world.launch(world.launch_token(att=2))
    assert "StaleEpoch" in caplog.text


async def test_an_answer_survives_a_store_that_fails_after_the_action(world: World) -> None:
    world.execution.go_on.clear()
    call = asyncio.create_task(world.join())
    await world.execution.entered.wait()
    world.sink.broken = True
    world.execution.go_on.set()
    assert (await call).attempt == 3


async def test_a_cancelled_call_gets_its_result(world: World) -> None:
    world.execution.go_on.clear()
    call = asyncio.create_task(world.join())
    await world.execution.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [(r.stage, r.reason) for r in world.sink.records] == [
        (Stage.INTENT, "Pending"),
        (Stage.RESULT, "Interrupted"),
    ]


async def test_an_error_of_the_layer_is_recorded_as_error(world: World) -> None:
    world.execution.fails = RuntimeError("secret inside")
    with pytest.raises(RuntimeError):
        await world.join()
    assert (world.sink.records[-1].decision, world.sink.records[-1].reason) == (Decision.ERROR, "Internal")
    assert "secret" not in world.sink.records[-1].detail


async def test_a_value_that_was_sent_never_enters_a_record(world: World) -> None:
    world.execution.fails = e.InvalidInputError("pod", "hunter2", "is not known")
    with pytest.raises(e.InvalidInputError):
        await world.join()
    assert world.sink.records[-1].detail == "pod: is not known"


async def test_one_shot_counts_once_among_fifty(world: World) -> None:
    token = world.launch_token()
    answers = await asyncio.gather(*(world.launch(token) for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(a, Ack) for a in answers) == 1
    assert sum(isinstance(a, e.ReplayedTokenError) for a in answers) == 49
    assert world.execution.done == ["launch"]
    assert sum(r.stage is Stage.DENY for r in world.sink.records) == 49


async def test_one_shot_is_used_up_even_if_the_action_fails(world: World) -> None:
    token = world.signer.one_shot("execution.join")
    world.execution.fails = e.ConflictError("late")
    for expected in (e.ConflictError, e.ReplayedTokenError):
        with pytest.raises(expected):
            await world.gate.call(token, "execution.join", RESOURCE, JOIN)


async def test_one_shot_is_not_good_where_nothing_uses_it_up(world: World) -> None:
    query = {"sub": "layer:governance", "ns": "_cluster", "job": "-", "juid": "-", "att": 1, "pod": ..., "ranks": ...}
    cap = [{"op": "governance.query", "res": "_cluster/audit/records"}]
    token = world.signer.one_shot("governance.query", cap=cap, **query)
    with pytest.raises(e.PermissionDeniedError):
        await world.gate.call(token, "governance.query", "_cluster/audit/records", AuditQuery())


async def test_revoked_token_with_a_warm_cache(world: World) -> None:
    token = world.signer.token(**AGENT, jti="A" * 22)
    await world.gate.call(token, "execution.join", RESOURCE, JOIN)
    world.fence.taken_back.add("A" * 22)
    with pytest.raises(e.RevokedTokenError):
        await world.gate.call(token, "execution.join", RESOURCE, JOIN)


async def test_new_attempt_bites_with_a_warm_cache(world: World) -> None:
    token = world.signer.token(**AGENT)
    await world.gate.call(token, "execution.join", RESOURCE, JOIN)
    world.fence.attempts[JUID] = 4
    with pytest.raises(e.StaleEpochError):
        await world.gate.call(token, "execution.join", RESOURCE, JOIN)
    del world.fence.attempts[JUID]
    with pytest.raises(e.StaleEpochError):
        await world.gate.call(token, "execution.join", RESOURCE, JOIN)


async def test_narrowed_policy_bites_with_a_warm_cache_and_disturbs_nobody_else(world: World) -> None:
    token = world.signer.token(**AGENT)
    await world.gate.call(token, "execution.join", RESOURCE, JOIN)
    world.policies.current = BUILT_IN.replace(generation=2)
    await world.gate.call(token, "execution.join", RESOURCE, JOIN)
    narrowed = {who: {op: r for op, r in ops.items() if op != "execution.join"} for who, ops in BUILT_IN.rights.items()}
    world.policies.current = BUILT_IN.replace(generation=2, rights=narrowed)
    with pytest.raises(e.StalePolicyError):
        await world.gate.call(token, "execution.join", RESOURCE, JOIN)
    with pytest.raises(e.PermissionDeniedError):
        await world.join(polv=2)
    world.policies.current = BUILT_IN.replace(generation=3)
    await world.gate.call(token, "execution.join", RESOURCE, JOIN)


async def test_policy_may_demand_a_one_shot(world: World) -> None:
    strict = {"agent": {"execution.join": BUILT_IN.rights["agent"]["execution.join"].replace(one_shot=True)}}
    world.policies.current = BUILT_IN.replace(rights=strict)
    with pytest.raises(e.OneShotRequiredError):
        await world.join()
    await world.join(one=True, exp=int(world.clock()) + 60)


async def test_another_pods_request_and_another_pods_ranks(world: World) -> None:
    with pytest.raises(e.PermissionDeniedError):
        await world.join(pod="w-1")
    heartbeat = HeartbeatRequest.model_validate({"join": JOIN, "ranks": [{"rank": 4, "state": "Running"}]})
    cap = [{"op": "execution.heartbeat", "res": RESOURCE}]
    token = world.signer.token(aud="kc:execution", cap=cap)
    with pytest.raises(e.RankMismatchError):
        await world.gate.call(token, "execution.heartbeat", RESOURCE, heartbeat)
    assert world.sink.records[-1].reason == "RankMismatch"
    own = heartbeat.replace(ranks=(heartbeat.ranks[0].replace(rank=3),))
    with pytest.raises(e.ConflictError):
        await world.gate.call(token, "execution.heartbeat", RESOURCE, own)
    assert world.sink.steps == [("execution.heartbeat", RESOURCE, f"agent:{NS}/digits/w-0")]


async def test_a_body_is_parsed_only_for_those_who_may_call(world: World) -> None:
    bad = {"attempt": "hunter2"}
    with pytest.raises(e.MalformedTokenError):
        await world.gate.call_wire(None, "execution.join", RESOURCE, bad, "opid-1")
    with pytest.raises(e.InvalidInputError) as caught:
        await world.gate.call_wire(world.signer.token(**AGENT), "execution.join", RESOURCE, bad, "opid-2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.field == "request.attempt"
    assert [(r.opid, r.decision) for r in world.sink.records] == [("opid-1", Decision.DENY), ("opid-2", Decision.ERROR)]
    good = await world.gate.call_wire(world.signer.token(**AGENT), "execution.join", RESOURCE, JOIN.wire(), "opid-3")
    assert isinstance(good, JoinReply)


def test_an_operation_is_served_once(world: World) -> None:
    with pytest.raises(ValueError, match="served twice"):
        world.gate.register(Execution())
    assert world.gate.operation("execution.join").request is JoinRequest
    with pytest.raises(e.UnknownOperationError):
        world.gate.operation("strategy.plan")


class Rank(ExecutionRank):
    def context(self, capability: Capability, request: Empty) -> ContextView:
        capability.require_ranks([capability.claims.rank or 0])
        return ContextView(step=1, epoch=0, samples=0, section="train")


class TestStepCalls:
    """`call_now`: the door on a training thread."""

    CLAIMS: dict[str, Any] = {
        "sub": f"rank:{NS}/digits/w-0",
        "aud": "kc:execution",
        "cap": [{"op": "execution.context", "res": RESOURCE}],
    }

    @pytest.fixture
    def rank(self, world: World) -> World:
        world.gate.register(Rank())
        return world

    def test_allowed(self, rank: World) -> None:
        answer = rank.gate.call_now(rank.signer.token(**self.CLAIMS), "execution.context", RESOURCE, Empty())
        assert isinstance(answer, ContextView)
        assert rank.sink.steps == [("execution.context", RESOURCE, f"rank:{NS}/digits/w-0")]

    @pytest.mark.parametrize(
        ("claims", "expected"),
        [
            ({"att": 2}, e.StaleEpochError),
            ({"one": True, "exp": int(Clock().now) + 60}, e.PermissionDeniedError),
            ({"aud": "kc:state"}, e.InvalidAudienceError),
            ({"ranks": "4-7"}, e.RankMismatchError),
        ],
    )
    def test_denied(self, rank: World, claims: dict[str, Any], expected: type[e.CapabilityError]) -> None:
        with pytest.raises(expected):
            rank.gate.call_now(rank.signer.token(**(self.CLAIMS | claims)), "execution.context", RESOURCE, Empty())
        assert [r.reason for r in rank.sink.records] == [expected.code]

    def test_control_calls_do_not_pass(self, rank: World) -> None:
        with pytest.raises(e.UnknownOperationError):
            rank.gate.call_now(rank.signer.token(**AGENT), "execution.join", RESOURCE, JOIN)
        assert rank.execution.done == []


def test_printable_text() -> None:
    assert recordable("a\nb\x7f\u2028c", 64) == "a?b?\\u2028c"
    assert len(recordable("\u2028" * 100, 64)) == 64


async def test_nothing_of_a_token_reaches_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.sink.broken = True
    token = world.launch_token(att=2)
    with pytest.raises(e.StaleEpochError):
        await world.launch(token)
    assert not any(part in caplog.text for part in token.split("."))
