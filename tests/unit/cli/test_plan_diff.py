"""`kuangchao plan-diff`: plans as they come from kubectl, from describe and from plan itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kuangchao_contracts.plan import PlanOutcome
from kuangchao_operator.cli.main import app
from kuangchao_operator.layers.strategy.explain import plan_json
from tests.unit.contracts.test_plan import plan

BEFORE, AFTER = plan(), plan(micro_batch=2, global_batch=16)
FORMS: dict[str, Any] = {
    "alone": BEFORE.wire(),
    "its object": {"apiVersion": "kuangchao.io/v1alpha1", "kind": "ParallelPlan", "spec": {"plan": BEFORE.wire()}},
    "describe": {"job": {}, "plan": BEFORE.wire()},
    "plan": plan_json(PlanOutcome(plan=BEFORE)),
}


def run(folder: Path, before: Any, after: Any, *options: str) -> Result:
    names = [folder / "before.json", folder / "after.json"]
    for name, body in zip(names, (before, after), strict=True):
        name.write_text(json.dumps(body))
    return CliRunner().invoke(app, ["plan-diff", *map(str, names), *options])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_plan_is_read(tmp_path: Path, form: str) -> None:
    done = run(tmp_path, FORMS[form], AFTER.wire())
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"dp8 ({BEFORE.hash[:8]}) -> dp8 ({AFTER.hash[:8]})",
        "micro-batch 1 -> 2: more samples are at work at once",
        "global batch 8 -> 16: the training itself is another",
    ]


def test_for_programs(tmp_path: Path) -> None:
    answer = json.loads(run(tmp_path, BEFORE.wire(), BEFORE.wire(), "-o", "json").stdout)
    assert answer == {"before": BEFORE.hash, "after": BEFORE.hash, "differences": []}
    assert "no difference" in run(tmp_path, BEFORE.wire(), BEFORE.wire()).stdout


NO_PLAN = "before.json': holds no plan"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], NO_PLAN),
        ({"kind": "ParallelPlan"}, NO_PLAN),
        ({"kind": "TrainingJob", "spec": {"pool": "a"}}, NO_PLAN),
        ({"plan": None}, NO_PLAN),
        ({}, "before.json:1: worldSize=None: is required"),
        (
            {"plan": AFTER.wire() | {"worldSize": 0}},
            "before.json:1: worldSize=0: input should be",
        ),
        (AFTER.wire() | {"tensors": 1}, "tensors='tensors': unknown field; nearest legal value: tensor"),
    ],
)
def test_what_is_no_plan_is_bad_input(tmp_path: Path, body: Any, told: str) -> None:
    done = run(tmp_path, body, AFTER.wire())
    assert done.exit_code == 2
    assert told in done.stderr
