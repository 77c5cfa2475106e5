"""The built-in document: the rights without which nothing would run, in force until somebody gives another document."""

from typing import Final

from kuangchao_contracts.policy.document import GrantRule, PolicyDocument
from kuangchao_contracts.policy.model import Selector

_JOB: Final = (Selector.TASK_OWNED.value,)
_PARAMETERS: Final = (Selector.PARAM_STORE_ASSIGNED.value,)
_AUDIT: Final = (Selector.AUDIT_RECORDS.value,)
AUDIT_READS: Final = ("governance.query", "governance.verify", "governance.prove")
"""What the governance process's lease holds."""


def _grant(rule: str, subject: str, resources: tuple[str, ...], *operations: str) -> GrantRule:
    return GrantRule(id=rule, subject=subject, resources=resources, operations=operations)


BUILT_IN_DOCUMENT: Final = PolicyDocument(
    grants=(
        _grant("execution-asks-strategy", "layer:execution", _JOB, "strategy.plan", "strategy.replan"),
        _grant("execution-asks-state", "layer:execution", _JOB, "state.assess"),
        _grant("execution-acts", "layer:execution", _JOB, "execution.launch", "execution.stop", "execution.reclaim"),
        _grant("state-restarts", "layer:state", _JOB, "execution.stop", "execution.launch"),
        _grant("governance-reads", "layer:governance", _AUDIT, *AUDIT_READS),
        _grant("interface-reads", "layer:interface", _AUDIT, "governance.query"),
        _grant("agent-takes-part", "agent", _JOB, "execution.join", "execution.heartbeat"),
        _grant("agent-checkpoints", "agent", _JOB, "state.commit_checkpoint", "state.restore_point"),
        _grant("agent-front-door", "agent", _JOB, "interface.exchange", "interface.feed"),
        _grant("rank-links", "rank", _JOB, "topology.build", "topology.destroy"),
        _grant("rank-plugins", "rank", _JOB, "plugin.open_step", "plugin.save", "plugin.restore"),
        _grant("rank-context", "rank", _JOB, "execution.context"),
        _grant(
            "rank-parameters",
            "rank",
            _PARAMETERS,
            "state.submit_gradients",
            "state.save",
            "state.restore",
            "state.snapshot",
        ),
    )
)
