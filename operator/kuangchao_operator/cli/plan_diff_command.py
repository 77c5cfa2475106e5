"""`kuangchao plan-diff`: two stored plans compared in words. Offline; makes no plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.cli.files import ARGUMENT
from kuangchao_operator.cli.output import Format, Output, emit_json

if TYPE_CHECKING:
    from kuangchao_contracts.plan import ParallelPlan

PlanFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A ParallelPlan, or what `kuangchao plan -o json` wrote; - reads stdin.",
        show_default=False,
    ),
]


def plan_diff(before: PlanFile, after: PlanFile, output: Output = Format.TEXT) -> None:
    """Compare two stored plans in words; needs no cluster.

    A plan is what `kubectl get parallelplan NAME -o json`, `kuangchao describe JOB -o json` or `kuangchao plan -o json`
    wrote.

    JSON: {before, after, differences: []}; before and after are the plans' hashes
    """
    from kuangchao_operator.layers.strategy.diff import diff

    old, new = read_plan(before), read_plan(after)
    lines = diff(old, new)
    if output is Format.JSON:
        emit_json({"before": old.hash, "after": new.hash, "differences": list(lines)})
        return
    print(f"{old.summary()} ({old.hash[:8]}) -> {new.summary()} ({new.hash[:8]})")
    print("\n".join(lines) or "no difference")


def read_plan(name: str, option: str = ARGUMENT) -> ParallelPlan:
    """The plan of a file that an option names. Raises InvalidInputError."""
    from kuangchao_contracts.plan import ParallelPlan
    from kuangchao_operator.cli.manifest import read, typed

    documents = read(name, option)
    if len(documents) != 1:
        raise InvalidInputError(option, name, f"holds {len(documents)} documents", "1 plan")
    part = documents[0].part(_place(documents[0].data))
    if not isinstance(part.data, dict):
        raise InvalidInputError(option, name, "holds no plan", "a ParallelPlan, or what kuangchao plan -o json wrote")
    return typed(part, ParallelPlan)


def _place(data: Any) -> tuple[str, ...]:
    """Where a plan stands: alone, in its object, or beside what explains it."""
    if isinstance(data, dict) and "kind" in data:
        return ("spec", "plan")
    return ("plan",) if isinstance(data, dict) and "plan" in data else ()
