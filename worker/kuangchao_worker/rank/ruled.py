"""A task with the rules that its plan needs: its own, or what its model shows where it has none."""

import dataclasses
import logging
from typing import Final

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import ParallelPlan, Recompute
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.find import joined, missing_rules
from kuangchao_worker.tasks.found.parts import fault_of

log = logging.getLogger(__name__)
VIEW: Final = "shapes of the tensors at hand, of heads x.view(batch, tokens, -1, width)"


def ruled(task: Task, plan: ParallelPlan, *, quiet: bool) -> Task:
    """The task as it is, or with what was found for a kind of rules that the plan needs and the task leaves empty.

    Raises InvalidInputError where the plan splits over tensor ranks and the model shows nothing that they could divide,
    and where the task's own rules divide what its model counts on as a whole.
    """
    if plan.tensor > 1 and task.rules.tensor:
        _require_parts(task, plan.tensor, quiet=quiet)
    tensor = plan.tensor > 1 and not task.rules.tensor
    chain = (plan.pipeline > 1 or plan.recompute is not Recompute.NONE) and not task.rules.chain
    if not tensor and not chain:
        return task
    found, remark = missing_rules(task, ranks=plan.tensor)
    if tensor and not found.tensor:
        why = f"the task has no rules.tensor, and its model shows none that so many ranks can follow: {remark}"
        raise InvalidInputError("plan.tensor", plan.tensor, why, 1)
    if not quiet:
        log.warning("the task leaves it to its model how that is split; found: %s", said(found))
    return dataclasses.replace(task, rules=joined(task.rules, found))


def _require_parts(task: Task, ranks: int, *, quiet: bool) -> None:
    try:
        fault = fault_of(task, ranks)
    except Exception as error:  # noqa: BLE001 - code of the task, which met tensors without values
        if not quiet:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            log.warning("the task's tensor rules are not tried on its model: %s", what)
        return
    if fault is not None:
        why = f"is divided, and the model counts on all of its features where a rank has 1/{ranks}: {fault.why}"
        raise InvalidInputError("task.rules.tensor", fault.layer, why, VIEW)


def said(rules: ParallelRules) -> str:
    """Chain and tensor rules in a line."""
    chain = [f"chain {' > '.join(rules.chain)}"] if rules.chain else []
    return ", ".join(chain + [f"{name} {style.value}" for name, style in rules.tensor.items()]) or "nothing"
