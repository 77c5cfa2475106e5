"""What every refusal has in common, whoever was refused and why."""

from typing import Any

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import Decision, Stage
from kuangchao_contracts.wire import to_reply
from tests.boundary.authority.world import World
from tests.unit.authority.kit import TOKEN

OUTWARD = {401: "invalid_token", 403: "denied"}


def assert_refused(
    world: World, outcome: Any, expected: type[e.CapabilityError], op: str, resource: str, token: str | None
) -> None:
    """The exact error, the same answer for all, exactly one record without a byte of the token, no port reached."""
    assert type(outcome) is expected, outcome
    assert world.reached == []
    assert_outward(outcome)
    # counts of step calls that were let pass carry no token's id; a clock that is moved on may bring them along
    (record,) = [r for r in world.records() if r.stage is not Stage.READ or r.jti]
    assert (record.stage, record.decision, record.reason, record.count) == (
        Stage.DENY,
        Decision.DENY,
        expected.code,
        1,
    )
    assert (record.op, record.resource) == (op, resource)
    assert_no_token_in(record.canonical().decode(), token)
    assert_no_token_in(f"{outcome!s} {outcome!r}", token)


def assert_outward(error: e.CapabilityError) -> None:
    """401 when nothing is proven of the caller, 403 when it is known and may not; nothing more."""
    status, reply = to_reply(error, "opid")
    assert OUTWARD[status] == reply.error
    assert (status == 403) == isinstance(error, e.DeniedError)
    assert reply.wire() == {"error": reply.error, "message": "", "opid": "opid"}


def assert_no_token_in(text: str, token: str | None) -> None:
    assert not TOKEN.search(text)
    for part in (token or "").split("."):
        assert len(part) < 8 or part not in text
