"""Which kind of subject may ever hold which operation. Default deny; a matching denial beats every allowance.

Checked when a token is minted and again on every call, so narrowing this bites at once, without revoking tokens.
"""

from kuangchao_contracts.errors import PermissionDeniedError, SeparationOfDutyError

GENERATION = 1

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
