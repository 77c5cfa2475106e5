"""Which kind of subject may ever hold which operation. Default deny; a matching denial beats every allowance.

Checked when a token is minted and again on every call, so narrowing this bites at once, without revoking tokens.
"""

from kuangchao_contracts.errors import DeniedError, PermissionDeniedError, SeparationOfDutyError, StalePolicyError

GENERATION = 1
"""Of the table below; raised by whoever changes it. Tokens carry the generation that they were minted under."""

ALLOW: dict[str, frozenset[str]] = {
    "layer:execution": frozenset(
        {
            "strategy.plan",
            "strategy.replan",
            "state.assess",
            "execution.launch",
            "execution.stop",
            "execution.reclaim",
        }
    ),
    "layer:state": frozenset({"execution.stop", "execution.launch"}),
    "layer:governance": frozenset({"governance.query"}),
    "layer:interface": frozenset({"governance.query"}),
    "agent": frozenset(
        {
            "execution.join",
            "execution.heartbeat",
            "state.commit_checkpoint",
            "state.restore_point",
            "interface.exchange",
            "interface.feed",
        }
    ),
    "rank": frozenset(
        {
            "topology.build",
            "topology.destroy",
            "execution.context",
            "state.submit_gradients",
            "state.save",
            "state.restore",
            "state.snapshot",
        }
    ),
}
READ_ONLY: frozenset[str] = frozenset({"governance.query", "resource.descriptors", "interface.feed"})


def role(subject: str) -> str:
    """Policy subject of a token subject: layers stand for themselves, workers for their part (agent or rank)."""
    kind = subject.split(":", 1)[0]
    return subject if kind == "layer" else kind


def permits(subject: str, op: str) -> None:
    """Raise PermissionDeniedError (SeparationOfDutyError for governance) unless the subject may hold the operation."""
    if role(subject) == "layer:governance" and op not in READ_ONLY:
        raise SeparationOfDutyError("governance only reads")
    if op not in ALLOW.get(role(subject), frozenset()):
        raise PermissionDeniedError("policy does not allow this operation to this subject")


def permits_now(subject: str, op: str, minted_under: int) -> None:
    """`permits` for a token that was minted earlier.

    A token of an older generation is good while the current table still allows the call, so a reload disturbs nobody
    who keeps the right; refused, it raises StalePolicyError, as does a generation that this process does not know yet.
    """
    if minted_under > GENERATION:
        raise StalePolicyError("token was minted under a policy that is not known here yet")
    try:
        permits(subject, op)
    except DeniedError:
        if minted_under < GENERATION:
            raise StalePolicyError("the policy has changed since the token was minted") from None
        raise
