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
    from pydantic import ValidationError

    from kuangchao_contracts.plan import ParallelPlan
    from kuangchao_operator.cli.manifest import read

    documents = read(name, option)
    if len(documents) != 1:
        raise InvalidInputError(option, name, f"holds {len(documents)} documents", "1 plan")
    try:
        return ParallelPlan.model_validate(_plan_in(documents[0].data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "plan"
        raise InvalidInputError(
            f"{name}: {where}", None, f"is not of a plan: {first['msg']}", "a ParallelPlan"
        ) from None


def _plan_in(data: Any) -> Any:
    """A plan as it stands alone, in its object, or beside what explains it."""
    if not isinstance(data, dict):
        return data
    if data.get("kind") == "ParallelPlan":
        spec = data.get("spec")
        return spec.get("plan") if isinstance(spec, dict) else None
    return data.get("plan", data)
