"""`kuangchao audit verify`, `prove` and `check-proof` on a copy of a store: exit codes and what is said."""

import asyncio
import json
import sqlite3
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kuangchao_contracts.auditproof import ProveRequest, VerifyReport, VerifyRequest
from kuangchao_operator.audit.prove import prove
from kuangchao_operator.audit.verify import verify_some
from kuangchao_operator.cli import audit_commands, cluster
from kuangchao_operator.cli.main import app
from tests.unit.authority.proven import Proven


class Copy:
    """A store with two checkpoints over 20 records, and what an auditor has of it."""

    def __init__(self, directory: Path) -> None:
        self.world = Proven(directory)
        asyncio.run(self._fill())
        self.world.store.close()
        self.store, self.keys, self.anchor = self.world.directory, directory / "keys.json", directory / "anchor"
        self.keys.write_bytes(self.world.witness.keys.canonical())
        self.anchor.write_text(self.world.anchors[-1])

    async def _fill(self) -> None:
        for _ in range(2):
            await self.world.signed(10)

    def sql(self, *statements: str) -> None:
        connection = sqlite3.connect(self.world.file, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def test_a_whole_store(copy: Copy) -> None:
    result = run("verify", "--directory", copy.store, "--anchor", copy.anchor, "--audit-key", copy.keys)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "20 records of 1 days (to record 20), 2 checkpoints, 1 anchors\nwhole\n"


def test_what_was_left_out_is_said(copy: Copy) -> None:
    result = run("verify", "--directory", copy.store, "-o", "json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert (said["ok"], said["anchors"], said["signaturesChecked"]) == (True, 0, False)
    assert "give --audit-key" in result.stderr
    assert "give --anchor" in result.stderr


def test_a_changed_record_is_named(copy: Copy) -> None:
    copy.sql("UPDATE records SET body = CAST(replace(body, 'allow', 'deny') AS BLOB) WHERE seq = 7")
    result = run("verify", "--directory", copy.store, "--anchor", copy.anchor, "--audit-key", copy.keys)
    assert result.exit_code == 1
    assert "PROBLEM audit-2027-01-15.sqlite: record 7: says otherwise than its column decision" in result.stdout
    assert "NOT WHOLE" in result.stdout


def test_log_lines_are_anchors(copy: Copy) -> None:
    copy.anchor.write_text("\n".join(copy.world.lines))
    copy.sql("DELETE FROM records WHERE seq > 10", "DELETE FROM checkpoints WHERE size > 10")
    result = run("verify", "--directory", copy.store, "--anchor", copy.anchor, "--audit-key", copy.keys, "-o", "json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["anchors"]) == (1, 2)
    assert said["problems"] == [
        "audit-2027-01-15.sqlite: ends after 10 records, before the anchor of 20: cut or rolled back"
    ]


def test_a_record_is_proved_with_keys_alone(copy: Copy, tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    result = run("prove", 7, "--directory", copy.store)
    assert result.exit_code == 0
    proof.write_text(result.stdout)
    said = run("check-proof", proof, "--audit-key", copy.keys, "-o", "json")
    assert said.exit_code == 0
    body = json.loads(said.stdout)
    assert (body["seq"], body["record"]["opid"], body["checkpoint"]["size"]) == (7, "op-7", 20)
    assert run("check-proof", proof, "--audit-key", copy.keys).stdout.startswith(
        "record 7 is one of the 20 of 2027-01-15"
    )
    proof.write_text(result.stdout.replace("op-7", "op-8"))
    forged = run("check-proof", proof, "--audit-key", copy.keys)
    assert (forged.exit_code, forged.stdout) == (1, "")
    assert "error: record 7 is not number 6 of 20" in forged.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("prove", 21, "--directory", "{store}"), 2, "nearest legal value: 20"),
        (("verify", "--directory", "{store}", "--anchor", "{keys}"), 2, "--anchor"),
        (("verify", "--directory", "{store}", "--audit-key", "{anchor}"), 2, "--audit-key"),
        (("check-proof", "{anchor}", "--audit-key", "{keys}"), 2, "FILE"),
        (("verify", "--directory", "{store}/none"), 2, "does not exist"),
        (("verify", "--directory", "{store}/.."), 2, "holds no day of an audit store"),
    ],
    ids=["no such record", "anchor is no note", "key is no key", "proof is no proof", "no such store", "no store"],
)
def test_bad_input(copy: Copy, arguments: tuple[object, ...], code: int, said: str) -> None:
    places = {"store": copy.store, "keys": copy.keys, "anchor": copy.anchor}
    result = run(*(str(argument).format(**places) for argument in arguments))
    assert result.exit_code == code
    assert said in result.stderr


class FakeCluster:
    """ConfigMaps of a release."""

    def __init__(self, found: dict[str, dict[str, str]]) -> None:
        self._found = found

    def request(self, method: str, path: str) -> dict[str, object]:
        assert path.startswith("/api/v1/namespaces/kuangchao-system/configmaps/")
        return {"data": self._found[path.rsplit("/", 1)[1]]} if self._found[path.rsplit("/", 1)[1]] else {}


class FakeGovernance:
    """The store as it is asked for by a port-forward."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, path: str, query: dict[str, str]) -> dict[str, object]:
        if path.endswith("/verify"):
            request = VerifyRequest.model_validate_json(query["request"])
            return verify_some(self._directory, request.replace(limit=7)).wire()
        return prove(self._directory, ProveRequest.model_validate_json(query["request"])).wire()


@pytest.fixture
def release(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """A cluster whose store is the copy; what its ConfigMaps hold may be changed."""
    found = {
        "kuangchao-trust": {"audit-keys.json": copy.keys.read_text()},
        "kuangchao-audit-head": {"checkpoint": copy.anchor.read_text()},
    }
    monkeypatch.setattr(cluster, "Cluster", lambda context: FakeCluster(found))
    monkeypatch.setattr(
        audit_commands, "governance", lambda cluster, namespace: nullcontext(FakeGovernance(copy.store))
    )
    return found


def test_a_cluster_in_parts(copy: Copy, release: dict[str, dict[str, str]]) -> None:
    assert run("verify").stdout == "20 records of 1 days (to record 20), 2 checkpoints, 1 anchors\nwhole\n"
    copy.sql("DELETE FROM records WHERE seq > 10", "DELETE FROM checkpoints WHERE size > 10")
    result = run("verify", "-o", "json")
    assert result.exit_code == 1
    assert [problem.split(": ", 1)[1] for problem in json.loads(result.stdout)["problems"]] == [
        "ends after 10 records, before the anchor of 20: cut or rolled back",
        "audit-2027-01-15.sqlite has a checkpoint of 10 only, the anchor is of 20",
    ]


def test_a_cluster_that_lies_about_its_rows_cannot_lie_about_the_anchor(
    copy: Copy, release: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Proven(copy.store.parent / "other")
    asyncio.run(other.signed(20))
    other.store.close()
    monkeypatch.setattr(FakeGovernance, "get", lambda self, path, query: (
        VerifyReport(ok=True, files=1, records=20).wire() if path.endswith("/verify")
        else prove(other.directory, ProveRequest.model_validate_json(query["request"])).wire()
    ))  # fmt: skip
    result = run("verify", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["problems"]) == (
        1, ["anchor: no known key has signed the checkpoint"],
    )  # fmt: skip


def test_a_note_that_the_operator_put_aside_is_not_forgotten(copy: Copy, release: dict[str, dict[str, str]]) -> None:
    other = Proven(copy.store.parent / "other")
    asyncio.run(other.signed(20))
    other.store.close()
    release["kuangchao-audit-head"]["broken.2027-01-15.20"] = other.anchors[-1]
    result = run("verify", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["anchors"]) == (1, 2)
    assert "anchor: no known key has signed the checkpoint" in json.loads(result.stdout)["problems"]


@pytest.mark.parametrize("name", ["kuangchao-trust", "kuangchao-audit-head"])
def test_a_cluster_without_keys_or_anchor(release: dict[str, dict[str, str]], name: str) -> None:
    release[name].clear()
    result = run("verify")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"ConfigMap kuangchao-system/{name} has no" in result.stderr
