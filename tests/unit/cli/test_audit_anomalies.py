"""`kuangchao audit anomalies` on a directory: what it tells, in text and JSON, and how it refuses bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kuangchao_contracts.audit import AuditRecord
from kuangchao_operator.audit.store import AuditStore, Entry
from kuangchao_operator.cli.main import app
from tests.unit.governance.trail import AGENTS, START, at, denied, quiet

KEYS = {"rule", "severity", "subject", "start", "end", "count", "norm", "opids", "detail", "advice"}
SINCE = "2027-01-15T00:00:00Z"


def stored(directory: Path, records: list[AuditRecord]) -> Path:
    store = AuditStore(directory, START.timestamp)
    store.append([Entry(record) for record in sorted(records, key=lambda record: record.ts)])
    store.close()
    return directory


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", "anomalies", *arguments])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    replayed = denied(at(5), AGENTS[0], "state.commit_checkpoint", "ReplayedToken", opid="f" * 24)
    return stored(tmp_path / "audit", [*quiet(40), replayed])


def test_json(directory: Path) -> None:
    found = call("--directory", str(directory), "--since", SINCE, "-o", "json")
    assert found.exit_code == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer.keys() == {"since", "records", "findings"}
    assert answer["records"] == len(quiet(40)) + 1 > 1_000
    (finding,) = answer["findings"]
    assert finding.keys() == KEYS
    assert (finding["rule"], finding["subject"], finding["opids"]) == ("replay", AGENTS[0], ["f" * 24])


def test_text_names_rule_subject_operations_and_what_to_do(directory: Path) -> None:
    found = call("--directory", str(directory), "--since", SINCE)
    for words in ("replay", AGENTS[0], "f" * 24, "presented twice"):
        assert words in found.stdout


def test_since_leaves_out_what_is_older(directory: Path) -> None:
    found = call("--directory", str(directory), "--since", at(6).isoformat())
    assert found.stdout.startswith("nothing unusual in ")


@pytest.mark.parametrize("arguments", [("--directory", "/nonexistent"), ("--directory", ".", "--since", "yesterday")])
def test_bad_input(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2
