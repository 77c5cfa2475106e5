"""`kuangchao policy check`: a good document shows what it changes, a broken one is bad input with its fault named."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kuangchao_operator.cli.main import app
from tests.unit.authority.policies import BROKEN, NARROW, OBSERVER, STRICT


def check(*arguments: str, text: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["policy", "check", *arguments], input=text)


def test_the_built_in_rights_differ_in_nothing() -> None:
    found = check("-", text="extends: built-in")
    assert found.exit_code == 0
    assert "exactly the built-in ones" in found.stdout


def test_what_differs_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(NARROW)
    found = check(str(file))
    assert found.exit_code == 0
    rows = [line.split() for line in found.stdout.splitlines()[3:]]
    assert rows == [["-", "agent", "execution.join", "no", "more"]]


def test_json_tells_added_removed_and_changed() -> None:
    grant = NARROW.replace("denies", "grants").replace("execution.join", "execution.stop")
    assert json.loads(check("-", "-o", "json", text=grant).stdout)["added"] == [
        {"subject": "agent", "operation": "execution.stop", "oneShot": False, "maxTTL": 300}
    ]
    body = json.loads(check("-", "-o", "json", text=STRICT).stdout)
    assert body.keys() == {"sha256", "rules", "added", "removed", "changed"}
    assert (body["rules"], body["added"]) == (3, [])
    assert {"subject": "layer:execution", "operation": "strategy.plan", "oneShot": True, "maxTTL": 300} in body[
        "changed"
    ]
    assert {"subject": "rank", "operation": "state.save"} in body["removed"]


@pytest.mark.parametrize("case", [*BROKEN, "observer"])
def test_a_broken_document_is_bad_input(case: str) -> None:
    found = check("-", text=OBSERVER if case == "observer" else BROKEN[case][0])
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr.startswith("error: stdin: ")


def test_a_fault_is_named_for_programs_too() -> None:
    error = json.loads(check("-", "-o", "json", text=OBSERVER).stderr)["error"]
    assert (error["field"], error["value"], error["nearest"]) == (
        "stdin: grant observer: operations[0]",
        "execution.stop",
        "governance.query",
    )


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    assert check(str(tmp_path / "none.yaml")).exit_code == 2
