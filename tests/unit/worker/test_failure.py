"""How failures are named, and tasks that are not there or not right."""

import sys
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.errors import PeerLostError
from kuangchao_worker.rank.failure import describe, kind_of
from kuangchao_worker.tasks import TaskNotFoundError, load_task
from kuangchao_worker.tasks.mlp import mlp


def test_kinds_of_failure() -> None:
    assert kind_of(ValueError("x")) == "ValueError"
    assert kind_of(e.CheckpointCorruptError("x")) == "CheckpointCorrupt"
    assert kind_of(e.InvalidInputError("taskArgs.hidden", "x", "is not int")) == "InvalidSpec"
    assert kind_of(TaskNotFoundError("x")) == "TaskNotFound"
    gloo = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:1")
    assert kind_of(gloo) == PeerLostError.code == "PeerLost"
    assert kind_of(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) == "RuntimeError"


def test_exit_of_the_users_code_is_told_as_such() -> None:
    try:
        sys.exit(0)
    except SystemExit as error:
        assert describe(error).startswith("sys.exit(0) (at test_failure.py:")
        assert kind_of(error) == "SystemExit"


def test_failure_says_where_and_fits() -> None:
    try:
        raise ValueError("x" * 5000)
    except ValueError as error:
        text = describe(error)
    assert len(text) <= 1024
    assert "test_failure.py" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_package.x:make", "no module 'no_such_package'"),
        ("kuangchao_worker.tasks.digits:nothing", "it has digits$"),
        ("kuangchao_worker.tasks.nothing:x", "kuangchao_worker.tasks.nothing"),
        ("builtins:dict", "dict, not a Task"),
    ],
)
def test_task_that_is_not_there_is_named(name: str, words: str) -> None:
    with pytest.raises(TaskNotFoundError, match=words):
        load_task(name, {})


def test_broken_import_of_a_task_is_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_task.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load_task("broken_task:make", {})


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"hidden": "many"}, "taskArgs.hidden"),
        ({"hidden": "0"}, "taskArgs.hidden"),
        ({"hiden": "8"}, "taskArgs.hiden"),
        ({"dropout": "nan"}, "taskArgs.dropout"),
    ],
)
def test_task_arguments_are_checked(args: dict[str, str], field: str) -> None:
    with pytest.raises(e.InvalidInputError) as error:
        mlp(args)
    assert error.value.field == field
