"""The policy document as people write it, and every rule that a document must keep. Values only; YAML is elsewhere.

A document with a fault is refused as a whole: half a policy is none. Errors name rule, field, value and nearest legal.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.policy.model import READ_ONLY, Selector
from kuangchao_contracts.ports import OPERATIONS, Operation
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS

SUBJECTS: Final = (*(layer.subject for layer in Layer), "agent", "rank")
ISSUER_OPERATIONS: Final = frozenset({"interface.exchange"})
"""They end in a new token, so they stay with those for whom the front door is there."""
MIN_LEASE_SECONDS: Final = 240
"""Shortest life of a lease: it is renewed every 90 s, its Secret may take 120 s to reach the pod and a rank 30 s more
to read it. A shorter one would be dead on arrival."""
MIN_ONE_SHOT_SECONDS: Final = 10
"""Shortest life of a one-shot: it must outlive the way from the exchange to its use."""
Words = Annotated[tuple[Annotated[str, Field(max_length=64, strict=True)], ...], Field(min_length=1, max_length=64)]


class Rule(Contract):
    """A denial: this kind of subject may not do this, whatever is granted. It has no life time and no form of token."""

    id: Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", strict=True)]
    subject: Annotated[str, Field(max_length=64, strict=True)]
    operations: Words
    resources: Words


class GrantRule(Rule):
    """A grant: this kind of subject may do this."""

    one_shot: Annotated[bool, Field(strict=True)] = False
    """Demand a one-shot also where the operation would take a lease. What takes one-shots only always does."""
    max_ttl: Annotated[int | None, Field(alias="maxTTL", ge=1, le=MAX_LEASE_SECONDS, strict=True)] = None
    """Longest life of a token for these operations, in seconds; unset: as long as tokens of its form may live."""


class PolicyDocument(Contract):
    """All rules. Order means nothing; a denial beats every grant; what is not granted is denied."""

    extends: Literal["built-in"] | None = None
    """The rules of the built-in document count too, so that one denial need not repeat them all."""
    grants: Annotated[tuple[GrantRule, ...], Field(max_length=512)] = ()
    denies: Annotated[tuple[Rule, ...], Field(max_length=512)] = ()


def parse_document(data: Any) -> PolicyDocument:
    """The document in plain data. Raises InvalidInputError for what has the wrong form; see also `check`."""
    if not isinstance(data, dict) or not data:
        raise InvalidInputError("document", _short(data), "is not a policy", "extends: built-in")
    _check_fields("document", data, PolicyDocument)
    for section, model in (("grants", GrantRule), ("denies", Rule)):
        for place, rule in enumerate(data[section] if isinstance(data.get(section), list) else ()):
            if isinstance(rule, dict):
                _check_fields(_where(data, section, place), rule, model)
    try:
        return PolicyDocument.model_validate(data)
    except ValidationError as error:
        raise _fault(data, error) from None


def check(document: PolicyDocument) -> None:
    """Raise InvalidInputError for the first rule that names what does not exist or breaks an invariant."""
    seen: set[str] = set()
    for section, rules in (("grant", document.grants), ("deny", document.denies)):
        for rule in rules:
            where = f"{section} {rule.id}"
            if rule.id in seen:
                raise InvalidInputError(f"{where}: id", rule.id, "is used by another rule too", f"{rule.id}-2")
            seen.add(rule.id)
            _check_rule(where, rule)
            if isinstance(rule, GrantRule):
                _check_grant(where, rule)


def fits(selector: Selector, op: Operation) -> bool:
    """Whether an operation works on what a selector stands for."""
    parameters = selector is Selector.PARAM_STORE_ASSIGNED
    return selector.kind == op.kind and not (parameters and op.layer is not Layer.STATE)


def _check_rule(where: str, rule: Rule) -> None:
    """What must hold of grants and denials alike: a denial with a slip of the pen would deny nothing."""
    _known(f"{where}: subject", rule.subject, SUBJECTS, "is no subject of the policy")
    for place, name in enumerate(rule.resources):
        _known(f"{where}: resources[{place}]", name, tuple(Selector), "is no selector; rules name no namespaces")
    for place, name in enumerate(rule.operations):
        field = f"{where}: operations[{place}]"
        _known(field, name, tuple(OPERATIONS), "does not exist")
        op = OPERATIONS[name]
        if op.audit is AuditClass.PUBLIC:
            raise InvalidInputError(field, name, "is public: it takes no token and no rule")
        legal = [selector for selector in Selector if fits(selector, op)]
        for resource in rule.resources:
            if Selector(resource) not in legal:
                raise InvalidInputError(field, name, f"does not work on {resource}", legal[0].value)


def _check_grant(where: str, rule: GrantRule) -> None:
    for place, name in enumerate(rule.operations):
        field, op = f"{where}: operations[{place}]", OPERATIONS[name]
        if rule.subject == Layer.GOVERNANCE.subject and name not in READ_ONLY:
            raise InvalidInputError(field, name, "governance only reads", "governance.query")
        if name in ISSUER_OPERATIONS and rule.subject != "agent":
            raise InvalidInputError(f"{where}: subject", rule.subject, f"{name} stays with the front door", "agent")
        if rule.one_shot and not op.one_shot:
            _check_one_shot(where, rule, op)
        _check_ttl(where, rule, op)


def _check_one_shot(where: str, rule: GrantRule, op: Operation) -> None:
    field = f"{where}: oneShot"
    if op.audit is not AuditClass.CONTROL:
        raise InvalidInputError(field, True, f"only control calls use a one-shot up, {op.name} is none", False)
    if not rule.subject.startswith("layer:"):
        raise InvalidInputError(field, True, f"workers call {op.name} under a lease", False)


def _check_ttl(where: str, rule: GrantRule, op: Operation) -> None:
    lease = not (op.one_shot or rule.one_shot)
    least = MIN_LEASE_SECONDS if lease else MIN_ONE_SHOT_SECONDS
    if rule.max_ttl is not None and rule.max_ttl < least:
        why = f"a {'lease' if lease else 'one-shot'} for {op.name} must live {least} s or it ends before it can be used"
        raise InvalidInputError(f"{where}: maxTTL", rule.max_ttl, why, least)


def _known(field: str, value: str, legal: Iterable[str], why: str) -> None:
    words = list(legal)
    if value not in words:
        raise InvalidInputError(field, value, why, _nearest(value, words))


def _nearest(value: str, words: list[str]) -> str:
    folded = {word.lower(): word for word in words}
    return folded[next(iter(difflib.get_close_matches(value.lower(), folded, 1)), words[0].lower())]


def _check_fields(where: str, data: Mapping[Any, Any], model: type[Contract]) -> None:
    """Only the names that are documented: pydantic would take Python's as well."""
    legal = [field.alias or name for name, field in model.model_fields.items()]
    for name in data:
        _known(f"{where}: field", str(name), legal, "is unknown")


def _where(data: Mapping[str, Any], section: str, place: int) -> str:
    """A rule by its id, as far as it has one."""
    rule = data[section][place]
    name = rule.get("id") if isinstance(rule, dict) else None
    return (
        f"{section.removesuffix('s').replace('denie', 'deny')} {name}"
        if isinstance(name, str)
        else f"{section}[{place}]"
    )


def _fault(data: Mapping[str, Any], error: ValidationError) -> InvalidInputError:
    first = error.errors(include_url=False, include_context=False)[0]
    where, path = "document", list(first["loc"])
    if len(path) > 2 and isinstance(path[1], int):
        where, path = _where(data, str(path[0]), path[1]), path[2:]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return InvalidInputError(f"{where}: {field}", _short(first["input"]), first["msg"].lower())


def _short(value: Any) -> Any:
    return value if isinstance(value, str | int | None) and len(str(value)) <= 64 else f"{type(value).__name__}"
