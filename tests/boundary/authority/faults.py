"""Every way in which a call can be wrong, with the error that it must end in, in the order in which the gate judges.

Of two faults in one call the gate names the one that it judges first: so the expected error of a pair follows.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from kuangchao_contracts import errors as e
from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.claims import SYSTEM
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.policy import BUILT_IN, READ_ONLY
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.base import Operation
from tests.boundary.authority.holders import (
    ATTEMPT,
    CLOSED,
    HOLDERS,
    OTHER_JOB,
    REVOKED_JTI,
    Holder,
    holder_for,
    may,
    victim,
    worker,
)
from tests.boundary.authority.world import World
from tests.unit.authority.kit import NOW

GUARDED: Final = {name: op for name, op in OPERATIONS.items() if op.audit is not AuditClass.PUBLIC}
Refusal = tuple[int, type[e.CapabilityError]]
MakeToken = Callable[[World, Operation, Holder], str]
Applies = Callable[[Operation, Holder], bool]


class Judged(IntEnum):
    """The order of the gate's questions."""

    KEY = 1
    SIGNATURE = 2
    AUDIENCE = 3
    TIME = 4
    EPOCH = 5
    REVOKED = 6
    TENANT = 7
    JOB = 8
    POLICY = 9
    GRANT = 10
    ONE_SHOT = 11


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a call that is right otherwise."""

    judged: Judged
    error: type[e.CapabilityError]
    token: MakeToken
    applies: Applies = lambda op, holder: True
    resource: Callable[[Operation], str] = victim
    around: Callable[[World, Operation, Holder], AbstractContextManager[None]] = lambda *_: contextlib.nullcontext()


def claiming(**changes: Any) -> MakeToken:
    return lambda world, op, holder: world.token(op, holder, **changes)


def in_attempt(attempt: int, job_uid: str | None = None) -> MakeToken:
    """A token of an attempt of the job, also for those who belong to none."""

    def make(world: World, op: Operation, holder: Holder) -> str:
        own = "uid-1" if holder.job_uid == SYSTEM else holder.job_uid
        return world.token(op, holder, juid=job_uid or own, att=attempt)

    return make


def minted_at(seconds: float) -> MakeToken:
    def make(world: World, op: Operation, holder: Holder) -> str:
        with world.minting_at(seconds):
            return world.token(op, holder)

    return make


def by(name: str) -> MakeToken:
    """Minted by another issuer, whose key is in some way bad."""
    return lambda world, op, holder: world.token(op, holder, getattr(world, name))


def forged(world: World, op: Operation, holder: Holder) -> str:
    """Everything is right except that another key has signed."""
    good, bad = world.token(op, holder), world.token(op, holder, world.denied)
    return ".".join([*good.split(".")[:2], bad.split(".")[2]])


def other_audience(world: World, op: Operation, holder: Holder) -> str:
    layers = list(Layer)
    return world.token(op, holder, aud=layers[layers.index(op.layer) - 1].audience)


def other_operation(world: World, op: Operation, holder: Holder) -> str:
    """Of the same layer when it has another."""
    names = sorted(GUARDED, key=lambda name: (GUARDED[name].layer is not op.layer, name == op.name, name))
    return world.token(op, holder, cap=[{"op": next(n for n in names if n != op.name), "res": victim(op)}])


def other_resource(world: World, op: Operation, holder: Holder) -> str:
    return world.token(op, holder, cap=[{"op": op.name, "res": victim(op) + "x"}])


def other_kind(op: Operation) -> str:
    """The same names as a resource of a kind that the operation does not work on."""
    namespace, _, name = victim(op).split("/")
    return f"{namespace}/pools/{name}"


def on_other_kind(world: World, op: Operation, holder: Holder) -> str:
    """Granted there in so many words."""
    return world.token(op, holder, cap=[{"op": op.name, "res": other_kind(op)}])


def of_other_tenant(world: World, op: Operation, holder: Holder) -> str:
    """The same role over there."""
    if holder.pod:
        return world.token(op, worker(holder.role, "team-b", holder.job, "uid-b"))
    return world.token(op, replace(holder, namespace="team-b", job="digits", job_uid="uid-b", attempt=ATTEMPT))


def of_other_job(world: World, op: Operation, holder: Holder) -> str:
    job, uid = OTHER_JOB.job, OTHER_JOB.job_uid
    moved = worker(holder.role, holder.namespace, job, uid) if holder.pod else replace(holder, job=job, job_uid=uid)
    return world.token(op, moved)


def in_tenant(_: Operation, holder: Holder) -> bool:
    return holder.namespace != "team-b"


def of_a_job(op: Operation, holder: Holder) -> bool:
    return op.kind == "jobs"


def current_only(op: Operation, _: Holder) -> bool:
    return not op.stale_ok


FAULTS: Final[dict[str, Fault]] = {
    "denied kid": Fault(Judged.KEY, e.RevokedKeyError, by("denied")),
    "retired kid": Fault(Judged.KEY, e.RetiredKeyError, by("retired")),
    "unknown kid": Fault(Judged.KEY, e.UnknownKeyError, by("stranger")),
    "forged": Fault(Judged.SIGNATURE, e.InvalidSignatureError, forged),
    "wrong audience": Fault(Judged.AUDIENCE, e.InvalidAudienceError, other_audience),
    "expired": Fault(Judged.TIME, e.ExpiredSignatureError, minted_at(-306)),
    "immature": Fault(Judged.TIME, e.ImmatureSignatureError, minted_at(60)),
    "stale attempt": Fault(Judged.EPOCH, e.StaleEpochError, in_attempt(ATTEMPT - 1), current_only),
    "future attempt": Fault(Judged.EPOCH, e.FutureEpochError, in_attempt(ATTEMPT + 1), current_only),
    "closed job": Fault(Judged.EPOCH, e.StaleEpochError, in_attempt(ATTEMPT, CLOSED.job_uid), current_only),
    "deleted namesake": Fault(Judged.EPOCH, e.StaleEpochError, in_attempt(ATTEMPT, "uid-0"), current_only),
    "revoked jti": Fault(Judged.REVOKED, e.RevokedTokenError, claiming(jti=REVOKED_JTI)),
    "other tenant": Fault(Judged.TENANT, e.CrossTenantError, of_other_tenant, in_tenant),
    "other job": Fault(Judged.JOB, e.PermissionDeniedError, of_other_job, of_a_job),
    "other kind": Fault(Judged.JOB, e.PermissionDeniedError, on_other_kind, resource=other_kind),
    "older policy": Fault(
        Judged.POLICY,
        e.StalePolicyError,
        lambda world, op, holder: world.token(op, holder),
        around=lambda world, op, holder: world.policy_without(op, holder),
    ),
    "newer policy": Fault(Judged.POLICY, e.StalePolicyError, claiming(polv=BUILT_IN.generation + 1)),
    "wrong operation": Fault(Judged.GRANT, e.PermissionDeniedError, other_operation),
    "wrong resource": Fault(Judged.GRANT, e.PermissionDeniedError, other_resource),
    "longer resource": Fault(
        Judged.GRANT,
        e.PermissionDeniedError,
        lambda world, op, holder: world.token(op, holder),
        resource=lambda op: victim(op) + "/x",
    ),
    "lease": Fault(Judged.ONE_SHOT, e.OneShotRequiredError, claiming(one=False), lambda op, _: op.one_shot),
    "one-shot": Fault(
        Judged.ONE_SHOT,
        e.PermissionDeniedError,
        claiming(one=True, exp=int(NOW) + 60),
        lambda op, _: op.audit is not AuditClass.CONTROL,
    ),
}


def holder_fault(op: Operation, name: str) -> Refusal | None:
    """What is wrong with a holder itself; None for one that has the right."""
    holder = holder_for(op, name)
    if victim(op).split("/")[0] != holder.namespace:
        return Judged.TENANT, e.CrossTenantError
    if may(op, name):
        return None
    acting_governance = holder.subject == "layer:governance" and op.name not in READ_ONLY
    return Judged.POLICY, e.SeparationOfDutyError if acting_governance else e.PermissionDeniedError


def expected(op: Operation, name: str, fault: Fault) -> type[e.CapabilityError]:
    """The error of the fault that is judged first; where both are judged by one question, of the call's own."""
    own = (fault.judged, fault.error)
    return min(own, holder_fault(op, name) or own, key=lambda refusal: refusal[0])[1]


def pairs() -> list[tuple[Operation, str, str]]:
    """Operation, holder and fault of every case."""
    return [
        (op, name, title)
        for op in GUARDED.values()
        for name in HOLDERS
        for title, fault in FAULTS.items()
        if fault.applies(op, holder_for(op, name))
    ]
