"""How failures are named, and tasks that are not there or not right."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.errors import PeerLostError
from kuangchao_worker.layers.execution.executor import Outcome
from kuangchao_worker.pod.channel import RankMessage
from kuangchao_worker.rank import __main__ as program
from kuangchao_worker.rank import wiring
from kuangchao_worker.rank.failure import FAILED_EXIT, describe, kind_of, layer_of
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
        assert describe(error).startswith("sys.exit(0) (algorithm, at test_failure.py:")
        assert kind_of(error) == "SystemExit"


class MuteError(Exception):
    """Has no message that could be read."""

    def __str__(self) -> str:
        raise ValueError


class NumberError(MuteError):
    """Has a message that is no text."""

    def __str__(self) -> Any:
        return self.args[0]


class StopsError(MuteError):
    """Ends whoever reads its message."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (MuteError(), "MuteError", "MuteError: no message, which raised ValueError (algorithm, at "),
        (NumberError(5), "NumberError", "NumberError: no message, which raised TypeError"),
        (StopsError(), "StopsError", "StopsError: no message, which raised KeyboardInterrupt"),
        (type("L" * 90, (Exception,), {})("x"), "L" * 64, "LLL"),
        (ValueError("a \udcff name"), "ValueError", "ValueError: a ? name"),
        (ValueError("\N{PILE OF POO}" * 2_000), "ValueError", "ValueError: \N{PILE OF POO}"),
        (SystemExit(MuteError), "SystemExit", "sys.exit(<class"),
        (KeyboardInterrupt("now"), "KeyboardInterrupt", "KeyboardInterrupt: now"),
        (GeneratorExit(), "GeneratorExit", "GeneratorExit: "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_rank_says_how_it_ended_whatever_ended_it(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: str, words: str
) -> None:
    """The last word is sent though nobody can write it down: the task has closed its standard error."""
    said = ended_by(monkeypatch, error)
    assert (said.rank, said.step, said.error_kind) == (1, 4, kind)
    assert said.error is not None and said.error.startswith(words)
    assert len(said.wire()["error"]) <= 1024


def ended_by(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> RankMessage:
    """What a rank says whose task raises this."""

    def run(*_: Any) -> Outcome:
        sys.stderr.close()
        raise error

    said: list[RankMessage] = []
    channel = SimpleNamespace(step=4, reliable=said.append)
    with monkeypatch.context() as patch, Path("/dev/null").open("w") as closed:
        patch.setattr(program, "StopFlag", lambda: None)
        patch.setattr(program, "Assignment", SimpleNamespace(read=lambda _: SimpleNamespace(monitor="", rank=1)))
        patch.setattr(program, "RankChannel", lambda *_: channel)
        patch.setattr(wiring, "run_rank", run)
        patch.setattr(sys, "stderr", closed)
        assert program.main("") == FAILED_EXIT
    return said[0]


@pytest.mark.parametrize("act", ["sys.stdout.close()", "sys.stderr = None", "os.closerange(0, 3)"])
def test_a_process_ends_at_once_whatever_the_task_did_to_it(act: str) -> None:
    script = f"""
import atexit, os, sys, threading, time
from kuangchao_worker.pod.ending import leave
threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(time.sleep, 600)
print("said")
{act}
leave(7)
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=400, stdout=subprocess.PIPE, check=False)
    assert ended.returncode == 7


def raised_in(error: Exception, *modules: str) -> Exception:
    """An error as a function of the last of these modules raises it, each of which was called by the one before."""
    call: Any = None
    for name in reversed(modules):
        scope: dict[str, Any] = {"__name__": name, "inner": call}
        exec(f"def call(error):\n    {'inner(error)' if call else 'raise error'}", scope)
        call = scope["call"]
    try:
        call(error)
    except Exception as raised:  # noqa: BLE001 - whatever it is
        assert raised.__traceback__ is not None
        return raised.with_traceback(raised.__traceback__.tb_next)  # without this function
    raise AssertionError


DATA, STATE, PLUGIN = ("kuangchao_worker." + rest for rest in ("layers.execution.data", "layers.state", "plugins.find"))


@pytest.mark.parametrize("make", [ConnectionResetError, BrokenPipeError, RuntimeError])
@pytest.mark.parametrize(
    ("modules", "of_task", "layer"),
    [
        ((DATA, "mydata"), True, "algorithm"),
        ((DATA, "mydata", "http.client"), True, "algorithm"),
        ((f"{STATE}.plugged", PLUGIN, "theirs"), True, "plugin"),
        ((DATA, "mytask", "torch.nn.functional", "torch.distributed.fsdp"), False, "algorithm"),
        ((f"{STATE}.sharded", "torch.distributed"), False, "state"),
    ],
)
def test_a_data_server_that_is_gone_is_no_lost_peer(
    make: type[Exception], modules: tuple[str, ...], of_task: bool, layer: str
) -> None:
    error = raised_in(make("Connection reset by peer"), *modules)
    lost = "PeerLost" if make is RuntimeError else make.__name__
    assert kind_of(error) == ("UserError" if of_task else lost)
    assert layer_of(error) == layer


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
