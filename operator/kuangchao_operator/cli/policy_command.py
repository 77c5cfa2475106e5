"""`kuangchao policy check`: what a policy document would put in force, before anybody puts it there. Offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kuangchao_operator.cli.files import ARGUMENT, STDIN, read_bytes
from kuangchao_operator.cli.output import Format, Output, emit_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kuangchao_contracts.policy import Policy, Right

File = Annotated[
    str, typer.Argument(metavar="FILE", help="Policy document; - reads standard input.", show_default=False)
]


def check(file: File, output: Output = Format.TEXT) -> None:
    """Check a policy document and show what it changes.

    Shown are the rights that differ from the built-in ones.

    What the issuer would refuse is bad input (exit code 2): the message names line or rule, field, value and the
    nearest legal value.

    JSON: {sha256, rules, added: [{subject, operation, oneShot, maxTTL}], removed: [{subject, operation}],
    changed: [{subject, operation, oneShot, maxTTL}]}
    """
    from kuangchao_contracts.policy import BUILT_IN
    from kuangchao_operator.policy.reader import read_policy

    policy = read_policy("stdin" if file == STDIN else file, read_bytes(ARGUMENT, file), BUILT_IN.generation + 1)
    found = list(differences(BUILT_IN, policy))
    if output is Format.JSON:
        emit_json(as_json(policy, found))
    else:
        print(report(policy, found))


def differences(old: Policy, new: Policy) -> Iterator[tuple[str, str, Right | None, Right | None]]:
    """Subject, operation and the right before and after, for each right that differs."""
    for who in sorted(old.rights.keys() | new.rights.keys()):
        before, after = old.rights.get(who, {}), new.rights.get(who, {})
        for op in sorted(before.keys() | after.keys()):
            if before.get(op) != after.get(op):
                yield who, op, before.get(op), after.get(op)


def report(policy: Policy, found: list[tuple[str, str, Right | None, Right | None]]) -> str:
    """The answer for people."""
    head = f"{len(policy.rules)} rules, sha256 {policy.sha256}"
    if not found:
        return f"{head}\nthe rights are exactly the built-in ones"
    rows = [(_sign(before, after), who, op, _terms(after)) for who, op, before, after in found]
    return f"{head}\nrights that differ from the built-in ones:\n{table(('', 'subject', 'operation', 'terms'), rows)}"


def as_json(policy: Policy, found: list[tuple[str, str, Right | None, Right | None]]) -> dict[str, Any]:
    """The answer for programs."""
    answer: dict[str, Any] = {"sha256": policy.sha256, "rules": len(policy.rules)}
    for sign, key in (("+", "added"), ("-", "removed"), ("~", "changed")):
        answer[key] = [
            {"subject": who, "operation": op}
            | ({"oneShot": after.one_shot, "maxTTL": after.max_ttl} if after is not None else {})
            for who, op, before, after in found
            if _sign(before, after) == sign
        ]
    return answer


def _sign(before: Right | None, after: Right | None) -> str:
    if before is None:
        return "+"
    return "-" if after is None else "~"


def _terms(right: Right | None) -> str:
    if right is None:
        return "no more"
    terms = [",".join(right.selectors), f"at most {right.max_ttl} s"]
    return "; ".join([*terms, "one-shot"] if right.one_shot else terms)
