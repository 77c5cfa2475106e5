"""Policy files for tests: good ones, and a corpus of broken ones with what their refusal must say."""

from kuangchao_operator.policy.reader import MAX_BYTES

GOOD = """\
# who may what
grants:
  - id: agents-talk
    subject: agent
    operations: [execution.join, execution.heartbeat, interface.exchange]
    resources: ["task:owned"]
    maxTTL: 240
  - id: agents-commit
    subject: agent
    operations: [state.commit_checkpoint]
    resources: ["task:owned"]
    maxTTL: 20
denies:
  - id: no-reclaim
    subject: layer:execution
    operations: [execution.reclaim]
    resources: ["task:owned"]
"""
NARROW = """\
extends: built-in
denies:
  - id: no-joins
    subject: agent
    operations: [execution.join]
    resources: ["task:owned"]
"""
STRICT = """\
grants:
  - id: agents-talk
    subject: agent
    operations: [execution.join, execution.heartbeat]
    resources: ["task:owned"]
    maxTTL: 240
  - id: agents-commit
    subject: agent
    operations: [state.commit_checkpoint]
    resources: ["task:owned"]
    maxTTL: 15
  - id: planning
    subject: layer:execution
    operations: [strategy.plan]
    resources: ["task:owned"]
    oneShot: true
"""
OBSERVER = """\
extends: built-in
grants:
  - id: observer
    subject: layer:governance
    operations: [execution.stop]
    resources: ["task:owned"]
"""


def bomb() -> str:
    """Eleven levels of nine aliases each."""
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(["a0: &a0 [x]", *levels])


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "duplicate key": (GOOD.replace("    maxTTL: 240\n", "    maxTTL: 240\n    maxTTL: 300\n"), "line 8: key='maxTTL'"),
    "duplicate section": (GOOD + "grants: []\n", "given twice"),
    "anchor bomb": (bomb(), "anchors"),
    "anchor": (GOOD.replace("grants:", "grants: &all"), "line 2: anchor='all'"),
    "alias": ("grants: *all", "anchors"),
    "tag": (GOOD.replace("subject: agent", "subject: !!python/name:os.system agent"), "tags"),
    "merge key": ("<<: {extends: built-in}", "not the name of a field"),
    "number as a key": ("1: {}", "not the name of a field"),
    "truncated in a rule": (GOOD[: GOOD.index("operations: [execution.reclaim]")], "deny no-reclaim"),
    "truncated in a list": (GOOD[: GOOD.index("reclaim]")], "line"),
    "truncated to nothing": ("", "not a policy"),
    "comments only": ("# nothing\n", "not a policy"),
    "cross-namespace": (
        GOOD.replace('["task:owned"]', '["*/jobs/*"]', 1),
        "grant agents-talk: resources[0]='*/jobs/*'",
    ),
    "unknown operation": (GOOD.replace("execution.reclaim", "execution.reclam"), "deny no-reclaim: operations[0]"),
    "unknown field": (GOOD.replace("subject: agent", "subject: agent\n    audience: kc:state", 1), "audience"),
    "two documents": (GOOD + "---\n" + GOOD, "one document"),
    "too deep": ("grants: " + "[" * 5_000, "nested too deeply"),
    "not UTF-8": (GOOD.encode() + b"\xff", "UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "UTF-8"),
    "NUL": ("grants: \x00", "special characters"),
    "oversize": (GOOD + "#" * MAX_BYTES, "too large"),
    "huge number": ("grants: [{maxTTL: " + "9" * 5_000 + "}]", "digits"),
    "tabs": ("grants:\n\t- x", "line 2"),
}
