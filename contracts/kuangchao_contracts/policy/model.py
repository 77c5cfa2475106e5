"""The compiled policy: what gate, issuer and front door ask. Default deny; answers, never loads.

Asked when a token is minted and again on every call, so narrowing it bites at once, without revoking tokens.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts import names, resources
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import DeniedError, PermissionDeniedError, SeparationOfDutyError, StalePolicyError
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS

READ_ONLY: Final[frozenset[str]] = frozenset(
    {"governance.query", "governance.verify", "governance.prove", "resource.descriptors", "interface.feed"}
)
"""All that governance may ever hold, whatever a document says."""


class Selector(StrEnum):
    """What a rule is about. There are no others: nobody can write a namespace into a rule, so none can cross one."""

    TASK_OWNED = "task:owned"
    """The job that the token is about."""
    PARAM_STORE_ASSIGNED = "param-store:assigned"
    """The parameters of that job: the same resource, for operations of the state layer only."""
    AUDIT_RECORDS = "audit:records"
    """The audit records of the token's namespace, or of the cluster for a token of the cluster."""

    @property
    def kind(self) -> str:
        """The kind of resource that it stands for."""
        return "audit" if self is Selector.AUDIT_RECORDS else "jobs"

    def resource(self, namespace: str, job: str) -> str:
        """The resource that it stands for in a token of this namespace and job."""
        return f"{namespace}/audit/records" if self is Selector.AUDIT_RECORDS else names.job_resource(namespace, job)


class Right(Contract):
    """What one kind of subject may do with one operation, all grants taken together and all denials taken off."""

    selectors: Annotated[tuple[Selector, ...], Field(min_length=1)]
    one_shot: bool = False
    """A one-shot is demanded, also where the operation itself would take a lease."""
    max_ttl: Annotated[int, Field(ge=1, le=MAX_LEASE_SECONDS)] = MAX_LEASE_SECONDS
    """Longest life of a token with which the operation can be called."""

    def covers(self, namespace: str, job: str, resource: str) -> bool:
        """Whether a token of this namespace and job may list that resource."""
        return any(resources.narrower(selector.resource(namespace, job), resource) for selector in self.selectors)


class RuleChanges(Contract):
    """Ids of rules that differ between two policies."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Policy(Contract):
    """One generation of the policy. `rights` by policy subject (see `role`), then by operation."""

    generation: Annotated[int, Field(ge=0, le=2**53)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the file that it was made from; of the canonical document for the built-in one."""
    rules: dict[str, str]
    """Digest of each rule by its id, to tell which ones changed."""
    rights: dict[str, dict[str, Right]]

    def right(self, subject: str, op: str) -> Right:
        """The right of a subject to an operation. Raises PermissionDeniedError or SeparationOfDutyError."""
        who = role(subject)
        if who == "layer:governance" and op not in READ_ONLY:
            raise SeparationOfDutyError("governance only reads")
        held = self.rights.get(who)
        right = held.get(op) if held else None
        if right is None:
            raise PermissionDeniedError("policy does not allow this operation to this subject")
        return right

    def permits(self, subject: str, op: str) -> bool:
        """Whether the subject may hold the operation."""
        try:
            self.right(subject, op)
        except DeniedError:
            return False
        return True

    def right_now(self, subject: str, op: str, minted_under: int) -> Right:
        """`right` for a token that was minted earlier.

        A token of an older generation is good while the current table still allows the call, so a reload disturbs
        nobody who keeps the right; refused, it raises StalePolicyError, as does a generation that is not known here.
        """
        if minted_under > self.generation:
            raise StalePolicyError("token was minted under a policy that is not known here yet")
        try:
            return self.right(subject, op)
        except DeniedError:
            if minted_under < self.generation:
                raise StalePolicyError("the policy has changed since the token was minted") from None
            raise


def role(subject: str) -> str:
    """Policy subject of a token subject: layers stand for themselves, workers for their part (agent or rank)."""
    kind = subject.split(":", 1)[0]
    return subject if kind == "layer" else kind


def changes(old: Policy, new: Policy) -> RuleChanges:
    """Which rules differ."""
    return RuleChanges(
        added=tuple(sorted(new.rules.keys() - old.rules.keys())),
        removed=tuple(sorted(old.rules.keys() - new.rules.keys())),
        changed=tuple(
            sorted(rule for rule in old.rules.keys() & new.rules.keys() if old.rules[rule] != new.rules[rule])
        ),
    )
