"""The attack corpus at the gate: each vector ends in its own error, and from outside they all look the same."""

import logging
import socket
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.keys import public_key
from kuangchao_contracts.ports import OPERATIONS
from tests.boundary.authority.refusals import assert_no_token_in, assert_refused
from tests.boundary.authority.vectors import VECTORS, Vector
from tests.boundary.authority.world import World
from tests.unit.authority.kit import JOB, NS, RESOURCE, Clock, Signer

RESTORE, LAUNCH = OPERATIONS["state.restore_point"], OPERATIONS["execution.launch"]
LAYER: dict[str, Any] = {"sub": "layer:execution", "pod": ..., "ranks": ...}
AGENT: dict[str, Any] = {"sub": f"agent:{NS}/{JOB}/w-0", "pod": "w-0", "ranks": "0"}


@pytest.fixture
def signer(world: World) -> Signer:
    """Signs anything with the issuer's own key."""
    signer = Signer(Clock(world.clock.now))
    signer.private = world.issuer.keys.signing_key()[1]
    signer.public = public_key(signer.private.public_key())
    return signer


@pytest.fixture(autouse=True)
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a header names is never fetched."""
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, lambda *_: pytest.fail("opened a connection"))


@pytest.mark.parametrize(("vector", "expected"), [v[1:] for v in VECTORS], ids=[name for name, *_ in VECTORS])
def test_token(
    world: World,
    signer: Signer,
    caplog: pytest.LogCaptureFixture,
    vector: Vector,
    expected: type[e.CapabilityError],
) -> None:
    caplog.set_level(logging.DEBUG)
    token = vector(signer)
    assert_refused(world, world.call(RESTORE, token, RESOURCE), expected, RESTORE.name, RESOURCE, token)
    assert_no_token_in(caplog.text, token)


# fmt: off
CALLS: list[tuple[str, dict[str, Any], str, type[e.CapabilityError]]] = [
    ("44 older attempt", {"att": 2}, RESOURCE, e.StaleEpochError),
    ("44 later attempt", {"att": 4}, RESOURCE, e.FutureEpochError),
    ("45 deleted namesake", {"juid": "uid-0"}, RESOURCE, e.StaleEpochError),
    ("46 policy of the future", {"polv": 9}, RESOURCE, e.StalePolicyError),
    ("53 full-width slash", {}, "team-a／jobs／digits", e.InvalidResourceError),
    ("53 Cyrillic", {}, "te\u0430m-a/jobs/digits", e.InvalidResourceError),
    ("53 zero width", {}, "team-a/jobs/dig\u200dits", e.InvalidResourceError),
    ("53 NFD", {}, "team-a/jobs/di\u0301gits", e.InvalidResourceError),
    ("54 dot dot", {}, "team-a/../team-b/x", e.InvalidResourceError),
    ("54 dot dot inside", {}, "team-a/jobs/../digits", e.InvalidResourceError),
    ("54 empty segment", {}, "team-a//jobs/digits", e.InvalidResourceError),
    ("54 percent", {}, "team-a/jobs/%2e%2e", e.InvalidResourceError),
    ("54 trailing slash", {}, RESOURCE + "/", e.InvalidResourceError),
    ("54 leading slash", {}, "/" + RESOURCE, e.InvalidResourceError),
    ("54 upper case", {}, "Team-A/jobs/digits", e.InvalidResourceError),
    ("54 nothing", {}, "", e.InvalidResourceError),
    ("54 NUL", {}, RESOURCE + "\x00", e.InvalidResourceError),
    ("55 star", {}, f"{NS}/jobs/*", e.WildcardForbiddenError),
    ("55 star as tenant", {}, "*/jobs/digits", e.WildcardForbiddenError),
    ("55 double star", {}, f"{NS}/**/digits", e.WildcardForbiddenError),
    ("57 longer name", {}, RESOURCE + "2", e.PermissionDeniedError),
    ("57 sub-resource", {}, RESOURCE + "/status", e.PermissionDeniedError),
    ("57 other kind", {}, f"{NS}/pools/digits", e.PermissionDeniedError),
    ("57 op not granted", {"cap": [{"op": "execution.stop", "res": RESOURCE}]}, RESOURCE, e.PermissionDeniedError),
    ("57 wildcard does not leave the job", {"cap": [{"op": "execution.launch", "res": f"{NS}/jobs/*"}]},
     f"{NS}/jobs/other", e.PermissionDeniedError),
    ("56 op unknown", {"cap": [{"op": "execution.explode", "res": RESOURCE}]}, RESOURCE, e.UnknownOperationError),
    ("58 other tenant", {}, "team-b/jobs/digits", e.CrossTenantError),
    ("61 governance acts", {"sub": "layer:governance"}, RESOURCE, e.SeparationOfDutyError),
    ("agent launches", AGENT, RESOURCE, e.PermissionDeniedError),
    ("lease for a one-shot operation", {"one": False}, RESOURCE, e.OneShotRequiredError),
    ("69 log injection", {}, "team-a/jobs/x\n\x1b[31mroot allowed", e.InvalidResourceError),
    ("69 one megabyte", {}, "a" * 1_000_000, e.InvalidResourceError),
]
# fmt: on


@pytest.mark.parametrize(("claims", "resource", "expected"), [c[1:] for c in CALLS], ids=[name for name, *_ in CALLS])
def test_call(
    world: World, signer: Signer, claims: dict[str, Any], resource: str, expected: type[e.CapabilityError]
) -> None:
    token = signer.one_shot(LAUNCH.name, **(LAYER | claims))
    outcome = world.call(LAUNCH, token, resource)
    assert type(outcome) is expected
    assert world.reached == []
    (record,) = world.records()
    assert (record.reason, record.count) == (expected.code, 1)
    assert record.subject == claims.get("sub", "layer:execution")
    text = record.canonical().decode()
    assert_no_token_in(text, token)
    assert len(text) < 4_096
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize(
    "op", ["x\n\x1b[2J" + "y" * 100, "execution.launch\x00", "execution.*", "*", "Execution.Launch", "x" * 1_000_000]
)
def test_unknown_operation_is_one_printable_record(world: World, signer: Signer, op: str) -> None:
    token = signer.token()
    with pytest.raises(e.UnknownOperationError):
        world.run(world.control.call_wire(token, op, RESOURCE, {}, "opid"))
    (record,) = world.records()
    assert (record.layer, record.subject) == ("unknown", "unverified")
    assert record.op.isascii()
    assert record.op.isprintable()
    assert len(record.op) <= 64


def test_subject_of_a_forged_token_is_not_believed(world: World, signer: Signer) -> None:
    token = Signer(signer.clock).token(header=signer.header(), sub="layer:execution")
    world.call(RESTORE, token, RESOURCE)
    (record,) = world.records()
    assert (record.subject, record.jti, record.kid) == ("unverified", "", "")
