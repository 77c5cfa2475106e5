"""Files that options name: what cannot be read or written is told by option and path, for every command."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kuangchao_operator.cli.main import app

SPLIT = Path(__file__).parents[3] / "examples/split"
JOB, NODES = str(SPLIT / "job.yaml"), str(SPLIT / "nodes.yaml")
PLANNED = ("plan", JOB, "--resources", NODES)
TOKEN = ("--audience", "a", "--issuer", "i")
READ = [
    (("plan", "{0}"), "FILE"),
    (("plan", JOB, "--resources", "{0}"), "--resources"),
    ((*PLANNED, "--check", "{0}"), "--check"),
    ((*PLANNED, "--calibration", "{0}"), "--calibration"),
    (("plan-diff", "{0}", JOB), "FILE"),
    (("calibrate", "{0}"), "RUNS.csv"),
    (("describe-model", "{0}/config.json"), "source"),
    (("policy", "check", "{0}"), "FILE"),
    (("token", "verify", JOB, "--jwks", "{0}", *TOKEN), "--jwks"),
]


@pytest.mark.parametrize(("arguments", "option"), READ)
def test_what_cannot_be_read_is_told_by_option_and_path(
    tmp_path: Path, arguments: tuple[str, ...], option: str
) -> None:
    path = tmp_path / "\u6587\u4ef6"
    done = CliRunner().invoke(app, [argument.format(path) for argument in arguments])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"error: {option}='{path}")
    assert "No such file or directory" in done.stderr


def test_resources_without_a_node_are_told_by_their_file(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(Path(NODES).read_text().partition("---")[0])
    done = CliRunner().invoke(app, ["plan", JOB, "--resources", str(path)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: --resources='{path}': holds no ResourceDescriptor")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(tmp_path)])
    assert (done.exit_code, "Is a directory" in done.stderr) == (2, True)


def test_what_cannot_be_written_is_told_the_same_way(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "step.svg"
    done = CliRunner().invoke(app, [*PLANNED, "--simulate=svg", "--to", str(missing)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: --to='{missing}': No such file or directory")


def test_a_file_that_never_ends_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kuangchao_operator.cli.files.MOST_BYTES", 10)
    (tmp_path / "job.yaml").write_bytes(b"#" * 11)
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml")])
    assert (done.exit_code, "is too large; nearest legal value: 10 bytes" in done.stderr) == (2, True)


def test_the_mark_that_editors_put_first_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + Path(JOB).read_bytes())
    assert CliRunner().invoke(app, ["plan", str(path), "--resources", NODES]).exit_code == 0
