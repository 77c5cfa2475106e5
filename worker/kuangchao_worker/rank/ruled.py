"""A task with the rules that its plan needs: its own, or what its model shows where it has none."""

import dataclasses
import logging

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import ParallelPlan, Recompute
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.found.find import joined, missing_rules

log = logging.getLogger(__name__)


def ruled(task: Task, plan: ParallelPlan, *, quiet: bool) -> Task:
    """The task as it is, or with what was found for a kind of rules that the plan needs and the task leaves empty.

    Raises InvalidInputError where the plan splits over tensor ranks and the model shows nothing that they could divide.
    """
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


def said(rules: ParallelRules) -> str:
    """Chain and tensor rules in a line."""
    chain = [f"chain {' > '.join(rules.chain)}"] if rules.chain else []
    return ", ".join(chain + [f"{name} {style.value}" for name, style in rules.tensor.items()]) or "nothing"
