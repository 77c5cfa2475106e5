"""`kuangchao describe-model`: from code and from a published configuration."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kuangchao_contracts.api.trainingjob import TrainingJobSpec
from kuangchao_operator.cli.main import app

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["describe-model", *arguments])


def test_a_published_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    done = run(str(path), "-o", "json")
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert (answer["parameters"], answer["model"]["kind"]) == (8_030_261_248, "transformer")
    text = run(str(path))
    assert text.stdout.startswith("model:\n  kind: transformer\n")
    assert "8,030,261,248 parameters" in text.stderr


def test_code_is_measured_in_a_process_of_its_own() -> None:
    done = run("kuangchao_worker.tasks.mlp:mlp", "--arg", "features=16", "--arg", "hidden=8", "-o", "json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["parameters"] == 16 * 8 + 8 + 8 * 8 + 8 + 8 + 1
    assert answer["model"]["activationBytesPerSample"] > 0
    assert answer["remark"] == ""


@pytest.mark.parametrize(
    ("task", "rules"),
    [
        ("kuangchao_worker.tasks.text:transformer", {"tensor", "sequence", "pipeline"}),
        ("kuangchao_worker.tasks.text:moe", {"tensor", "sequence", "pipeline", "expert"}),
        ("kuangchao_worker.tasks.digits:digits", {"pipeline"}),
    ],
)
def test_a_task_says_what_its_model_is_and_what_it_has_rules_for(task: str, rules: set[str]) -> None:
    """What it says of its model has the parameters that it makes; all of it can be pasted under spec."""
    done = run(task)
    assert done.exit_code == 0, done.stderr
    assert "and makes one of" not in done.stderr
    spec = {"pool": "p", "task": task, "devices": {"count": 2}, **yaml.safe_load(done.stdout)}
    pasted = TrainingJobSpec.model_validate(spec)
    assert rules <= set(pasted.parallelism.task_rules)
    assert pasted.model is not None
    assert pasted.model.kind == ("measured" if "digits" in task else "transformer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "neither MODULE:FUNCTION nor a file"),
        (["a:b", "--arg", "x"], "is not KEY=VALUE"),
        (["no_such_module:f"], "no module 'no_such_module'"),
        (["kuangchao_worker.tasks.text:transformer", "--arg", "heads=5"], "taskArgs.hidden=64: heads must be of even"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "mamba"}'])
def test_a_file_that_is_no_known_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert run(str(path)).exit_code == 2
