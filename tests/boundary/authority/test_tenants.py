"""Any holder, any grant, any resource: allowed exactly when tenant, job, kind, operation and grant all agree."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import Claims
from kuangchao_contracts.gate import authorise
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports import OPERATIONS
from tests.unit.authority.kit import ATTEMPT, ISSUER, FixedFence

# Names that contain, begin or end each other: whoever compares by prefix is found out.
NAMES = st.sampled_from(
    ["team-a", "team-a2", "team", "a", "team-a.b", "_cluster", "digits", "digits2", "digit", "records"]
)
KINDS = st.sampled_from(["jobs", "job", "pools", "audit"])
RESOURCES = st.lists(NAMES, min_size=0, max_size=2).flatmap(
    lambda rest: st.tuples(NAMES, KINDS, NAMES).map(lambda first: "/".join((*first, *rest)))
)
GRANTS = RESOURCES | RESOURCES.map(lambda text: text.rsplit("/", 1)[0] + "/*")
OPS = st.sampled_from(sorted(OPERATIONS))
SUBJECTS = st.sampled_from(
    ["layer:execution", "layer:state", "layer:governance", "layer:resource", "agent:x", "rank:x"]
)


def claims(ns: str, job: str, subject: str, grants: list[tuple[str, str]], *, one: bool) -> Claims:
    cap = [{"op": op, "res": res} for op, res in grants]
    worker = {"pod": "w-0", "ranks": "0"} if not subject.startswith("layer") else {}
    return Claims.model_validate(
        {"iss": ISSUER, "sub": subject, "aud": "kc:state", "iat": 1, "nbf": 1, "exp": 2, "jti": "A" * 22, "cap": cap,
         "ns": ns, "job": job, "juid": "uid-1", "att": ATTEMPT, "polv": 1, "one": one} | worker
    )  # fmt: skip


def allowed(holder: Claims, op: str, resource: str) -> bool:
    """The same question, answered in the plainest way."""
    spec, parts = OPERATIONS[op], resource.split("/")
    granted = any(
        grant.op == op
        and len(grant.res.split("/")) == len(parts)
        and all(mine in ("*", asked) for mine, asked in zip(grant.res.split("/"), parts, strict=True))
        for grant in holder.cap
    )
    legal = all(part != "_cluster" for part in parts[1:]) and not any(
        part == "_cluster" for grant in holder.cap if grant.op == op for part in grant.res.split("/")[1:]
    )
    return (
        legal
        and parts[0] == holder.ns
        and parts[1] == spec.kind
        and (spec.kind != "jobs" or parts[2] == holder.job)
        and granted
        and BUILT_IN.permits(holder.sub, op)
        and (holder.one if spec.one_shot else not holder.one or spec.audit.value == "control")
    )


@settings(max_examples=500, deadline=None)
@given(NAMES, NAMES, SUBJECTS, st.lists(st.tuples(OPS, GRANTS), min_size=1, max_size=3), OPS, RESOURCES, st.booleans())
def test_allowed_only_where_everything_agrees(
    ns: str, job: str, subject: str, grants: list[tuple[str, str]], op: str, resource: str, one: bool
) -> None:
    holder = claims(ns, job, subject, grants, one=one)
    try:
        authorise(holder, OPERATIONS[op], resource, FixedFence(), BUILT_IN)
        passed = True
    except e.CapabilityError:
        passed = False
    assert passed == allowed(holder, op, resource)


@settings(max_examples=500, deadline=None)
@given(NAMES, SUBJECTS, OPS, st.text(max_size=40) | RESOURCES, st.booleans())
def test_no_text_reaches_another_tenant(ns: str, subject: str, op: str, resource: str, one: bool) -> None:
    """Whatever the resource looks like, the first segment decides; and nothing but a refusal is ever raised."""
    holder = claims("team-a", "digits", subject, [(op, f"team-a/{OPERATIONS[op].kind}/digits")], one=one)
    try:
        authorise(holder, OPERATIONS[op], resource, FixedFence(), BUILT_IN)
    except e.CapabilityError:
        return
    assert resource == f"team-a/{OPERATIONS[op].kind}/digits"
