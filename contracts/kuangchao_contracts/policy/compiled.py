"""From document to policy: grants joined, denials taken off, invariants checked. The order of rules means nothing."""

from collections.abc import Iterable
from typing import Final

from kuangchao_contracts.policy.builtin import BUILT_IN_DOCUMENT
from kuangchao_contracts.policy.document import GrantRule, PolicyDocument, check
from kuangchao_contracts.policy.model import Policy, Right, Selector
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS

Rights = dict[str, dict[str, Right]]


def compile_policy(document: PolicyDocument, generation: int, sha256: str) -> Policy:
    """The policy of a document. Raises InvalidInputError for a document that may not be in force."""
    whole = _whole(document)
    check(whole)
    rights: Rights = {}
    for grant in whole.grants:
        for op in grant.operations:
            held = rights.setdefault(grant.subject, {})
            held[op] = _joined(held.get(op), grant)
    for deny in whole.denies:
        for op in deny.operations:
            # an operation works on one kind of resource, so every selector that fits it stands for the same one
            rights.get(deny.subject, {}).pop(op, None)
    rules = {rule.id: rule.content_hash()[:16] for rule in (*whole.grants, *whole.denies)}
    return Policy(
        generation=generation, sha256=sha256, rules=rules, rights={who: ops for who, ops in rights.items() if ops}
    )


def _whole(document: PolicyDocument) -> PolicyDocument:
    if document.extends is None:
        return document
    return PolicyDocument(grants=(*BUILT_IN_DOCUMENT.grants, *document.grants), denies=document.denies)


def _joined(right: Right | None, grant: GrantRule) -> Right:
    """Grants add up: whoever holds a right by two of them has the better terms of both."""
    selectors = _sorted(grant.resources)
    max_ttl = grant.max_ttl or MAX_LEASE_SECONDS
    if right is None:
        return Right(selectors=selectors, one_shot=grant.one_shot, max_ttl=max_ttl)
    return Right(
        selectors=_sorted({*right.selectors, *selectors}),
        one_shot=right.one_shot and grant.one_shot,
        max_ttl=max(right.max_ttl, max_ttl),
    )


def _sorted(names: Iterable[str]) -> tuple[Selector, ...]:
    return tuple(sorted({Selector(name) for name in names}))


BUILT_IN: Final = compile_policy(BUILT_IN_DOCUMENT, 1, BUILT_IN_DOCUMENT.content_hash())
