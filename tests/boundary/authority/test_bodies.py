"""A good token with somebody else's name in the body: the gate cannot see it, so the layer itself refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts import names
from kuangchao_contracts.base import Contract
from kuangchao_contracts.gate import Gate
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.run import HeartbeatRequest, JoinRequest
from kuangchao_operator.layers.execution.service import ExecutionService
from tests.boundary.authority.holders import ATTEMPT, JOB, Holder
from tests.boundary.authority.refusals import assert_outward
from tests.boundary.authority.world import World, running
from tests.unit.authority.kit import NS, RESOURCE

POD = names.pod_name(JOB, "uid-1", 0, 0)
SIBLING = names.pod_name(JOB, "uid-1", 0, 1)
HOLDER = Holder(f"agent:{NS}/{JOB}/{POD}", pod=POD, ranks="0-3")
JOIN = JoinRequest(attempt=ATTEMPT, incarnation=0, pod_index=0, pod=POD, host="127.0.0.1")


def beat(join: JoinRequest = JOIN, *ranks: int) -> Contract:
    reports = [{"rank": rank, "state": "Running"} for rank in ranks]
    return HeartbeatRequest.model_validate({"join": join, "ranks": reports})


def noting(rank: int) -> Contract:
    """A beat that brings a rank's note of a refusal."""
    note = {"rank": rank, "attempt": ATTEMPT, "op": "state.save", "resource": RESOURCE, "subject": "rank:x",
            "reason": "StaleEpoch", "count": 1, "first": "2027-01-15T08:00:00Z"}  # fmt: skip
    return HeartbeatRequest.model_validate({"join": JOIN, "ranks": [], "notes": {"seq": 1, "notes": [note]}})


BODIES: dict[str, tuple[str, Contract, type[e.CapabilityError]]] = {
    "joins as its sibling": ("join", JOIN.replace(pod=SIBLING, pod_index=1), e.PermissionDeniedError),
    "joins by its sibling's index": ("join", JOIN.replace(pod_index=1), e.PermissionDeniedError),
    "joins as a later incarnation": ("join", JOIN.replace(incarnation=1), e.PermissionDeniedError),
    "joins as a pod of another job": ("join", JOIN.replace(pod="letters-0-0"), e.PermissionDeniedError),
    "joins an older attempt": ("join", JOIN.replace(attempt=ATTEMPT - 1), e.StaleEpochError),
    "joins a later attempt": ("join", JOIN.replace(attempt=ATTEMPT + 1), e.FutureEpochError),
    "beats for its sibling": ("heartbeat", beat(JOIN.replace(pod=SIBLING, pod_index=1)), e.PermissionDeniedError),
    "beats for the leader": ("heartbeat", beat(JOIN.replace(pod_index=2)), e.PermissionDeniedError),
    "reports its sibling's rank": ("heartbeat", beat(JOIN, 4), e.RankMismatchError),
    "reports one rank too many": ("heartbeat", beat(JOIN, 0, 1, 2, 3, 4), e.RankMismatchError),
    "notes a refusal for its sibling's rank": ("heartbeat", noting(4), e.RankMismatchError),
    "reports the last rank there can be": ("heartbeat", beat(JOIN, 1_048_575), e.RankMismatchError),
}


class Untouched:
    """Stands for everything behind the layer; nothing of it may be asked."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"asked for {name}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("bodies")) as world:
        world.control = Gate("operator", world.verifier, world.fence, world.sink, world.clock.moment, world.policies)
        nothing: Any = Untouched()
        world.control.register(ExecutionService(nothing, nothing, nothing, nothing, world.sink))
        yield world


@pytest.mark.parametrize(("method", "body", "expected"), BODIES.values(), ids=BODIES)
def test_somebody_elses_body(
    world: World, method: str, body: Contract, expected: type[e.CapabilityError], tmp_path: Path
) -> None:
    op = OPERATIONS[f"execution.{method}"]
    outcome = world.call(op, world.token(op, HOLDER), RESOURCE, body)
    assert type(outcome) is expected, outcome
    assert_outward(outcome)
    assert world.records()[-1].reason == expected.code
