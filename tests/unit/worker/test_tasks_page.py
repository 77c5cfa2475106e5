"""docs/tasks.md: its code is a task that trains, and its manifest names it."""

import re
from pathlib import Path

import pytest
import yaml

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.rules import TaskRule
from kuangchao_worker.layers.execution.executor import Outcome
from kuangchao_worker.tasks import load_task
from tests.unit.worker.parts import Loop

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tasks.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
CODE = [text for kind, text in BLOCKS if kind == "python"]
MANIFEST = next(text for kind, text in BLOCKS if kind == "yaml")


def test_the_first_task_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(CODE[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = TrainingJob.model_validate(yaml.safe_load(MANIFEST)).spec
    loop = Loop(tmp_path, load_task(spec.task or "", spec.task_args), steps=60, batch=spec.training.global_batch)
    assert loop.executor.run(None) is Outcome.FINISHED
    assert float(loop.executor.metrics["accuracy"]) > 0.9


def test_the_rules_are_good_for_what_the_page_says() -> None:
    names: dict[str, object] = {}
    exec(next(text for text in CODE if "ParallelRules(" in text), names)
    assert names["RULES"].allowed == (TaskRule.TENSOR, TaskRule.PIPELINE)  # type: ignore[attr-defined]
    assert names["MODEL"].layers == 4  # type: ignore[attr-defined]
