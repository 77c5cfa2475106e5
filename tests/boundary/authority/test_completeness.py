"""The suite itself: a new operation, a new layer or a new refusal that nobody has a case for fails here."""

from abc import abstractmethod
from collections.abc import Iterator

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.capability import Capability
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports import OPERATIONS, PORTS
from kuangchao_contracts.ports.base import Port, operation, operations
from kuangchao_contracts.run import Ack, Empty
from kuangchao_operator.gate.limits import UNPROVEN
from tests.boundary.authority import faults, test_bodies, test_corpus, test_one_shots, test_warm, vectors
from tests.boundary.authority.faults import FAULTS, GUARDED, Judged, pairs
from tests.boundary.authority.holders import HOLDERS, RIGHTS

ELSEWHERE: dict[type[e.CapabilityError], str] = {
    e.DelegationError: "test_delegation.py",
    e.ExchangeDeniedError: "test_delegation.py",
    e.TooManyFailuresError: "../gate/test_floods.py",
    e.TooMuchSentError: "../gate/test_listener.py",
    e.ParameterTamperedError: "../../unit/worker/test_seal.py",
    e.UnleasedWriteError: "../../unit/worker/test_seal.py",
    e.DirectCommunicationError: "../../unit/worker/test_link_guard.py",
}
"""Refusals whose cases are no table of calls at the gate."""


def leaves(kind: type[e.CapabilityError]) -> Iterator[type[e.CapabilityError]]:
    for sub in kind.__subclasses__():
        if sub.__subclasses__():
            yield from leaves(sub)
        elif sub.__module__ == e.__name__:
            yield sub


def covered() -> set[type[e.KuangchaoError]]:
    return {
        *(fault.error for fault in FAULTS.values()),
        *(faults.expected(op, name, FAULTS[title]) for op, name, title in pairs()),
        *(expected for _, _, expected in vectors.VECTORS),
        *(expected for *_, expected in test_corpus.CALLS),
        *(expected for *_, expected in test_bodies.BODIES.values()),
        *(expected for _, expected in test_warm.CHANGES.values()),
        *test_one_shots.EXPECTED,
        *ELSEWHERE,
    }


def test_every_refusal_has_a_case() -> None:
    assert set(leaves(e.CapabilityError)) - covered() == set()


def test_a_refusal_is_either_of_an_unknown_caller_or_of_a_known_one() -> None:
    """Those that count against an address are the ones that the gate raises before it has found a signature good."""
    before = {fault.error for fault in FAULTS.values() if fault.judged in (Judged.KEY, Judged.SIGNATURE)}
    after = {fault.error for fault in FAULTS.values() if fault.judged > Judged.SIGNATURE}
    assert before <= UNPROVEN
    assert not after & UNPROVEN
    assert not {kind for kind in UNPROVEN if issubclass(kind, e.DeniedError)}


def test_every_guarded_operation_has_its_rightful_holders() -> None:
    assert RIGHTS.keys() == GUARDED.keys()


def test_the_built_in_policy_gives_exactly_these_rights() -> None:
    given = {op: {who for who, held in BUILT_IN.rights.items() if op in held} for op in GUARDED}
    assert given == {op: set(who) for op, who in RIGHTS.items()}


def test_every_layer_and_every_role_is_tried() -> None:
    tried = {holder.role for holder in HOLDERS.values()}
    assert tried == {layer.subject for layer in Layer} | {"agent", "rank"}
    assert {*RIGHTS.values()} and {role for roles in RIGHTS.values() for role in roles} <= tried


def test_every_operation_meets_every_fault_that_can_befall_it() -> None:
    for name, op in GUARDED.items():
        met = {title for case, _, title in pairs() if case is op}
        missing = FAULTS.keys() - met
        allowed = set() if op.one_shot else {"lease"}
        allowed |= {"one-shot"} if op.audit is AuditClass.CONTROL else set()
        allowed |= {"other job"} if op.kind != "jobs" else set()
        allowed |= {"stale attempt", "future attempt", "closed job", "deleted namesake"} if op.stale_ok else set()
        assert missing <= allowed, name


def test_a_port_that_is_declared_has_its_operations_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cases are made from is what the ports declare."""
    assert {name: op for port in PORTS for name, op in operations(port).items()} == OPERATIONS
    assert set(PORTS) == {port for port in Port.__subclasses__() if port.__module__.startswith("kuangchao_contracts.")}

    class Planted(Port):
        layer = Layer.STATE

        @abstractmethod
        @operation(audit=AuditClass.CONTROL)
        async def planted(self, capability: Capability, request: Empty) -> Ack:
            """New, and nobody's so far."""

    monkeypatch.setitem(GUARDED, "state.planted", operations(Planted)["state.planted"])
    with pytest.raises(AssertionError):
        test_every_guarded_operation_has_its_rightful_holders()
