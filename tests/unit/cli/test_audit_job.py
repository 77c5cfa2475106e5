"""`kuangchao audit job`: a run is put in order from store and logs, and nothing that was changed passes."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kuangchao_contracts.audit import Decision, Stage
from kuangchao_operator.audit import schema
from kuangchao_operator.cli.main import app
from tests.unit.cli.recorded import Recorded

CALL = {
    "kind", "seq", "time", "attempt", "operation", "subject", "token", "result", "reason", "detail", "count", "process",
}  # fmt: skip
STEPS = {
    "kind", "attempt", "rank", "firstLine", "lastLine", "began", "ended", "firstStep", "lastStep", "operations",
    "denied", "grace", "pinnedBy", "bound", "fault",
}  # fmt: skip
STEP = {"kind", "attempt", "rank", "line", "time", "operation", "subject", "step", "denied", "grace"}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", "job", *arguments])


def ask(job: Recorded, *arguments: str, code: int = 0) -> dict[str, Any]:
    found = invoke(
        "team/digits", "--directory", str(job.audit), "--checkpoints", str(job.job), "-o", "json", *arguments
    )
    assert found.exit_code == code, found.stdout + found.stderr
    return dict(json.loads(found.stdout))


def parts(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in answer["timeline"] if entry["kind"] == kind]


@pytest.fixture
def crashed(tmp_path: Path) -> Recorded:
    """Two commits and a crash seven steps later; the next attempt goes on from the second commit and ends well."""
    job = Recorded(tmp_path)
    job.start()
    job.train(10)
    job.save()
    job.train(10)
    job.save()
    job.train(7)
    for log in job.logs:
        log.close()
    job.start(step=20)
    job.train(10)
    job.save()
    return job.end()


def test_a_run_is_put_in_order(crashed: Recorded) -> None:
    answer = ask(crashed)
    assert answer.keys() == {"job", "uid", "others", "ok", "problems", "notes", "logs", "timeline"}
    assert (answer["job"], answer["uid"], answer["ok"], answer["problems"]) == ("team/digits", "uid-1", True, [])
    order = [
        (e["kind"], e["attempt"], e.get("rank"), e.get("operation"), e.get("firstStep"), e.get("lastStep"))
        for e in answer["timeline"]
    ]
    assert order == [
        ("call", 1, None, "execution.launch", None, None),
        ("steps", 1, 0, None, 1, 10),
        ("steps", 1, 1, None, 1, 10),
        ("call", 1, None, "state.commit_checkpoint", None, None),
        ("steps", 1, 0, None, 11, 20),
        ("steps", 1, 1, None, 11, 20),
        ("call", 1, None, "state.commit_checkpoint", None, None),
        ("lost", 1, 0, None, 21, 27),
        ("lost", 1, 1, None, 21, 27),
        ("call", 2, None, "execution.launch", None, None),
        ("steps", 2, 0, None, 21, 30),
        ("steps", 2, 1, None, 21, 30),
        ("call", 2, None, "state.commit_checkpoint", None, None),
    ]
    assert all(entry["token"].startswith("jti-") for entry in parts(answer, "call"))


def test_the_keys_are_those_that_are_documented(crashed: Recorded) -> None:
    answer = ask(crashed, "--steps")
    for kind, keys in (("call", CALL), ("steps", STEPS), ("lost", STEPS), ("step", STEP)):
        assert {frozenset(entry) for entry in parts(answer, kind)} == {frozenset(keys)}


def test_steps_are_listed_one_by_one(crashed: Recorded) -> None:
    answer = ask(crashed, "--steps")
    lines = [entry for entry in parts(answer, "step") if (entry["attempt"], entry["rank"]) == (1, 0)]
    assert [entry["line"] for entry in lines] == list(range(1, 30))
    assert [e["step"] for e in lines if e["step"]] == list(range(1, 28))


def test_what_came_after_the_last_commit_is_lost_with_its_length_and_bound(crashed: Recorded) -> None:
    lost = parts(ask(crashed), "lost")
    assert [(e["firstLine"], e["lastLine"], e["bound"], e["pinnedBy"]) for e in lost] == [(23, 29, 10, None)] * 2


def test_a_torn_end_is_a_loss_and_no_problem(crashed: Recorded) -> None:
    path = crashed.log(1, 0)
    path.write_bytes(path.read_bytes()[:-5])
    lost = parts(ask(crashed), "lost")
    assert (lost[0]["lastLine"], lost[0]["fault"]) == (28, "att-1.rank-0.jsonl line 29: cut off")


def test_text_for_people(crashed: Recorded) -> None:
    found = invoke("team/digits", "--directory", str(crashed.audit), "--checkpoints", str(crashed.job))
    assert found.exit_code == 0
    for words in ("jti-0", "steps 11-20", "pinned by step 20", "steps 21-27", "lost", "checkpoints are 10 steps apart"):
        assert words in found.stdout


# ---- what was changed is found


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def drop_line(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))


TAMPER: dict[str, tuple[Callable[[Recorded], Any], str]] = {
    "a flipped byte": (lambda job: flip(job.log(1, 1), 700), r"rank 1, attempt 1: att-1\.rank-1\.jsonl line \d"),
    "a line removed": (lambda job: drop_line(job.log(2, 0), 3), r"rank 0, attempt 2: att-2\.rank-0\.jsonl line 4"),
    "an end removed": (lambda job: drop_line(job.log(2, 0), 10), r"att-2\.rank-0\.jsonl line 10: is the last one"),
    "a log removed": (lambda job: job.log(1, 0).unlink(), "rank 0, attempt 1: no file"),
    "another rank's log": (lambda job: job.log(2, 0).replace(job.log(2, 1)), "rank 1, attempt 2: .* committed"),
    "an unpinned line": (lambda job: drop_line(job.log(1, 0), 24), r"after the last commit: att-1.* line 25"),
}  # fmt: skip


@pytest.mark.parametrize(("tamper", "words"), TAMPER.values(), ids=TAMPER)
def test_a_changed_log_is_named(crashed: Recorded, tamper: Callable[[Recorded], Any], words: str) -> None:
    tamper(crashed)
    answer = ask(crashed, code=1)
    assert not answer["ok"]
    assert any(re.search(words, problem) for problem in answer["problems"]), answer["problems"]


@pytest.mark.parametrize("change", [(b"jti-0", b"jti-9"), (b"{", b"[")])
def test_a_changed_record_is_named(crashed: Recorded, change: tuple[bytes, bytes]) -> None:
    (path,) = schema.files(crashed.audit)
    connection = sqlite3.connect(path)
    with connection:
        ((body,),) = connection.execute("SELECT body FROM records WHERE seq = 1")
        connection.execute("UPDATE records SET body = ? WHERE seq = 1", (body.replace(*change),))
    connection.close()
    found = invoke("team/digits", "--directory", str(crashed.audit))
    assert found.exit_code == 1
    assert re.search(r"audit store: audit-2026-01-15\S* record \d", found.stderr)


def test_text_names_the_problem_on_stderr(crashed: Recorded) -> None:
    flip(crashed.log(1, 0), 20)
    found = invoke("team/digits", "--directory", str(crashed.audit), "--checkpoints", str(crashed.job))
    assert found.exit_code == 1
    assert "problem: operation log of rank 0, attempt 1: att-1.rank-0.jsonl line" in found.stderr


# ---- many ranks: heads are in the manifest


@pytest.fixture
def large(tmp_path: Path) -> Recorded:
    """More ranks than a record has room for, three commits, the first pruned."""
    job = Recorded(tmp_path, ranks=40)
    job.start()
    for _ in range(3):
        job.train(3)
        job.save()
    job.prune()
    return job.end()


def test_heads_of_many_ranks_are_found_by_the_digest_in_the_record(large: Recorded) -> None:
    answer = ask(large)
    assert len(parts(answer, "steps")) == 3 * 40
    flip(large.log(1, 33), 100)
    assert "rank 33" in ask(large, code=1)["problems"][0]


def test_a_manifest_that_is_gone_leaves_later_heads_to_pin_the_lines(large: Recorded) -> None:
    (large.job / "oplog" / "att-1.manifest.json").unlink()
    answer = ask(large)
    assert "later heads pin the same lines" in answer["notes"][0]
    assert [(e["firstStep"], e["lastStep"]) for e in parts(answer, "steps") if e["rank"] == 0] == [(1, 6), (7, 9)]


def test_the_last_pruned_manifest_of_an_attempt_stays(large: Recorded) -> None:
    """The attempt after it may prune all checkpoints of the attempt before."""
    large.prune()
    large.prune()
    answer = ask(large)
    assert answer["ok"]
    assert [(e["firstStep"], e["lastStep"]) for e in parts(answer, "steps") if e["rank"] == 7] == [(1, 9)]


def test_without_the_newest_manifest_nothing_is_proved(large: Recorded) -> None:
    (large.job / "step-9.att-1" / "manifest.json").write_bytes(b"{}")
    assert "the manifest of step 9 is missing" in ask(large, code=1)["problems"][0]


# ---- what there is not


def test_ranks_without_a_file_are_named(tmp_path: Path) -> None:
    job = Recorded(tmp_path)
    job.start()
    job.train(10)
    job.save(unkept="1")
    job.end()
    job.log(1, 1).unlink()
    answer = ask(job)
    assert {entry["rank"] for entry in parts(answer, "steps")} == {0}
    assert "ranks 1 keep head and count only" in answer["notes"][0]


def test_a_commit_that_was_refused_pins_nothing(tmp_path: Path) -> None:
    job = Recorded(tmp_path)
    job.start()
    job.train(10)
    job.save(decision=Decision.DENY)
    answer = ask(job.end())
    assert parts(answer, "steps") == []
    assert [(e["firstStep"], e["lastStep"]) for e in parts(answer, "lost")] == [(1, 10)] * 2
    assert "no checkpoint was committed" in answer["notes"][0]


def test_without_a_volume_the_calls_are_told_and_the_logs_are_not(crashed: Recorded) -> None:
    found = invoke("team/digits", "--directory", str(crashed.audit), "-o", "json")
    answer = json.loads(found.stdout)
    assert (found.exit_code, answer["logs"]) == (0, False)
    assert {entry["kind"] for entry in answer["timeline"]} == {"call"}
    assert "--checkpoints" in answer["notes"][0]


def test_the_job_is_found_on_its_volume_by_its_mark(crashed: Recorded) -> None:
    other = crashed.job.with_name("another")
    other.mkdir()
    (other / ".kuangchao-owner").write_text("uid-2 team/other")
    found = invoke("team/digits", "--directory", str(crashed.audit), "--checkpoints", str(crashed.job.parent))
    assert found.exit_code == 0
    assert "pinned by step 20" in found.stdout
    wrong = invoke("team/digits", "--directory", str(crashed.audit), "--checkpoints", str(other))
    assert (wrong.exit_code, "uid-1" in wrong.stderr) == (2, True)


# ---- records


def on_volume(job: Recorded, code: int = 0) -> dict[str, Any]:
    arguments = ["team/digits", "--directory", str(job.audit), "--checkpoints", str(job.job.parent), "-o", "json"]
    found = invoke(*arguments)
    assert found.exit_code == code, found.stdout + found.stderr
    return dict(json.loads(found.stdout))


@pytest.mark.parametrize("lies_in", ["another", "zoo"], ids=["found before", "found after"])
def test_a_directory_that_bears_the_mark_of_another_job_does_not_make_its_logs_look_changed(
    crashed: Recorded, lies_in: str
) -> None:
    """Whoever has the volume can write the mark, and copy and change the logs."""
    honest = on_volume(crashed)
    forged = crashed.job.with_name(lies_in)
    shutil.copytree(crashed.job, forged)
    log = forged / "oplog" / crashed.log(1, 0).name
    log.write_bytes(log.read_bytes().replace(b'"n":5,', b'"n":6,'))
    with (forged / "oplog" / crashed.log(2, 1).name).open("ab") as file:
        file.write(b"and more\n")
    (forged / "oplog" / crashed.log(9, 0).name).write_text("an attempt that never was\n")
    answer = on_volume(crashed)
    assert (answer["ok"], answer["problems"]) == (True, [])
    assert parts(answer, "steps") == parts(honest, "steps")
    assert [entry for entry in parts(answer, "lost") if entry["attempt"] != 9] == parts(honest, "lost")
    notes = " ".join(answer["notes"])
    assert "several directories say that they are the job's" in notes
    assert f"{lies_in}" in notes
    assert "rank 0, attempt 1: there are 2, and the one that fits best was read" in notes
    shutil.rmtree(crashed.job)
    answer = on_volume(crashed, code=1)
    assert "operation log of rank 0, attempt 1: " in answer["problems"][0], "alone, it is a changed log"


def test_jobs_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    first = Recorded(tmp_path, uid="uid-0")
    first.call("strategy.plan", job_uid="-")
    first.start()
    second = Recorded(tmp_path, uid="uid-1")
    second.records = first.records
    second.call("strategy.plan", job_uid="-")
    second.start()
    second.call("execution.reclaim", job_uid="-")
    second.end()
    answer = ask(second)
    assert (answer["uid"], answer["others"]) == ("uid-1", ["uid-0"])
    assert [e["seq"] for e in answer["timeline"]] == [3, 4, 5]
    found = invoke("team/digits", "--directory", str(second.audit), "--uid", "uid-0", "-o", "json")
    assert [e["seq"] for e in json.loads(found.stdout)["timeline"]] == [1, 2]


def test_an_intent_without_result_is_unfinished_and_a_note_that_was_stored_twice_is_told_once(tmp_path: Path) -> None:
    job = Recorded(tmp_path)
    job.start()
    job.call("execution.stop", Stage.INTENT, decision=Decision.ERROR, reason="Pending")
    for _ in range(2):
        job.call("state.save", Stage.DENY, opid="same", process="rank/1", decision=Decision.DENY, reason="StaleEpoch",
                 count=4)  # fmt: skip
    calls = parts(ask(job.end()), "call")
    assert [(e["operation"], e["result"], e["reason"], e["count"]) for e in calls[1:]] == [
        ("execution.stop", "unfinished", "", 1),
        ("state.save", "deny", "StaleEpoch", 4),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("digits",), "<namespace>/<name>"),
        (("team/digits/x",), "<namespace>/<name>"),
        ((), "<namespace>/<name>"),
        (("team/nobody",), "is not in the record"),
        (("team/digits", "--since", "yesterday"), "--since"),
        (("--run", "/nonexistent"), "local run"),
        (("team/digits", "--checkpoints", "/nonexistent"), "--checkpoints"),
    ],
)
def test_bad_input(crashed: Recorded, arguments: tuple[str, ...], words: str) -> None:
    where = () if "--run" in arguments else ("--directory", str(crashed.audit))
    found = invoke(*arguments, *where)
    assert found.exit_code == 2
    assert words in found.stderr


def test_a_long_time_is_asked_for_in_pieces(crashed: Recorded) -> None:
    assert ask(crashed, "--since", "2025-11-01T00:00:00Z") == ask(crashed)
