"""`kuangchao describe-model`: from code and from a published configuration."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kuangchao_contracts.api.trainingjob import TrainingJobSpec
from kuangchao_operator.cli.main import app, main

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
    assert answer["taskRules"] == ["tensor", "pipeline"]
    assert answer["found"]["tensor"] == {"0.0": "columns", "1.0": "rows"}
    assert "taskRules wait for a model of kind transformer" in answer["remark"], "what is printed would change no plan"
    assert answer["remark"].endswith("and divides it as parallelism.tensor and pipeline are pinned")


def test_what_a_model_shows_is_printed_beside_what_can_be_pasted() -> None:
    done = run("kuangchao_worker.tasks.mlp:mlp")
    assert "# found in the model, where the task has no rules:\n# 0.0: columns\n# 1.0: rows\n" in done.stdout
    assert "found in the model" not in run("kuangchao_worker.tasks.text:transformer").stdout, "it has its own"


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


BAD_TASK = """
from kuangchao_contracts.plan import TransformerModel

def make(args):
    return TransformerModel(layers=2, hidden=8, heads=2, ffn=8, vocab=8, gated=False)

def fails(args):
    raise ValueError("two\\nlines")
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("make", "TransformerModel: gated=False: extra inputs are not permitted"),
        ("fails", "bad_task:fails did not make its model: ValueError: two lines"),
    ],
)
def test_code_that_fails_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, message: str
) -> None:
    (tmp_path / "bad_task.py").write_text(BAD_TASK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    done = run(f"bad_task:{function}")
    assert done.exit_code == 1
    assert message in done.stderr


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "mamba"}'])
def test_a_file_that_is_no_known_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert run(str(path)).exit_code == 2


@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
def test_a_name_of_any_script_is_written_so_that_it_comes_back(tmp_path: Path, charset: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"_name_or_path": "千问"}))
    text, wire = (
        CliRunner(charset=charset).invoke(app, ["describe-model", str(path), "-o", form]).stdout
        for form in ("text", "json")
    )
    assert yaml.safe_load(text)["model"]["name"] == json.loads(wire)["model"]["name"] == "千问"
    assert ("千问" in text, "千问" in wire) == ((charset == "utf-8",) * 2)


def test_what_stdout_cannot_show_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    monkeypatch.setattr(sys, "argv", ["kuangchao", "--help"])
    with pytest.raises(SystemExit):
        main()
    narrow.write("千")
    narrow.flush()
    assert narrow.buffer.getvalue().endswith(rb"\u5343")
