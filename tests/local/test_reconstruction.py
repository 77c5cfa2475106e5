"""What a real run leaves is enough to put it in order, and one changed byte of it is found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kuangchao_contracts.tokens import parse_claims, parse_strict
from kuangchao_contracts.wire import TokenBundle
from kuangchao_worker.pod.revocations import Revocations, write_revocations
from tests.local.runs import HELD, PATIENCE, manifest

AUDIT = [sys.executable, "-m", "kuangchao_operator.cli.main", "audit"]


def audit(*arguments: str, code: int = 0) -> dict[str, Any]:
    found = subprocess.run([*AUDIT, *arguments, "-o", "json"], capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == code, found.stdout + found.stderr
    return dict(json.loads(found.stdout))


def parts(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in answer["timeline"] if entry["kind"] == kind]


def test_a_run_with_a_killed_rank_is_put_in_order(digits, tmp_path: Path) -> None:
    """Rank 1 kills itself in step 27, when the checkpoint of step 20 is in the ledger."""
    run = digits["killed"]
    answer = audit("job", "--run", str(run.directory))
    calls = parts(answer, "call")
    assert {"execution.launch", "execution.join", "state.commit_checkpoint", "state.assess", "execution.reclaim"} <= {
        call["operation"] for call in calls
    }
    assert all(len(call["token"]) == 22 for call in calls if not call["operation"].endswith(("heartbeat", "feed")))
    for rank in (0, 1):
        pinned = [(e["attempt"], e["firstStep"], e["lastStep"]) for e in parts(answer, "steps") if e["rank"] == rank]
        assert pinned == [(1, 1, 20), (2, 21, 40), (2, 41, 60)]
    lost = [e for e in parts(answer, "lost") if e["attempt"] == 1]
    # what rank 1 had not handed to its file died with it; rank 0 lost its peer and handed over what it had
    assert [(e["rank"], e["firstStep"], e["lastStep"], e["bound"]) for e in lost] in ([], [(0, 21, 26, 20)])
    run.assert_nothing_left()
    one_flipped_byte_is_found(Path(shutil.copytree(run.directory, tmp_path / "copy")))


def one_flipped_byte_is_found(run: Path) -> None:
    (log,) = run.glob("checkpoints/*/oplog/att-2.rank-1.jsonl")
    flip(log, 1_000)
    (problem,) = audit("job", "--run", str(run), code=1)["problems"]
    assert "rank 1, attempt 2: att-2.rank-1.jsonl line " in problem
    flip(log, 1_000)
    assert audit("job", "--run", str(run))["ok"]
    launch = b'"op":"execution.launch"'
    # a run over midnight has two days
    day = next(day for day in run.glob("audit/audit-*.sqlite") if launch in day.read_bytes())
    flip(day, day.read_bytes().index(launch) + 8)
    found = subprocess.run([*AUDIT, "job", "--run", str(run)], capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == 1
    assert "audit store: " in found.stderr


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def test_a_call_refused_inside_a_rank_is_a_record_of_the_store(start) -> None:
    """Its token is taken back: the rank ends, the next attempt has other tokens, and the store says what happened."""
    # without saves in between there is one call that the token is for
    seldom = {"everySteps": 1000, "storage": {"claimName": "c"}}
    run = start(manifest("digits", task="mytask:held", steps=400, checkpoint=seldom), files={"mytask.py": HELD})
    run.until((run.folder / "held").exists)
    (bundle,) = run.temporary.glob("kuangchao-run-*/tokens/*-1/bundle.json")
    token = TokenBundle.model_validate_json(bundle.read_bytes()).tokens["rank/kc:state"]
    jti = parse_claims(parse_strict(token)[1]).jti
    (pod,) = run.directory.glob("pods/*-1/run")
    write_revocations(pod, Revocations(tokens=frozenset({jti})))
    (run.folder / "go").touch()
    assert run.end() == 0, run.err + run.explain()
    assert run.result()["attempts"] == 2
    answer = audit("job", "--run", str(run.directory))
    denied = [e for e in parts(answer, "call") if e["process"] == "rank/1"]
    assert [(e["operation"], e["result"], e["reason"], e["token"], e["attempt"], e["count"]) for e in denied] == [
        ("state.submit_gradients", "deny", "RevokedToken", jti, 1, 2)
    ]
    lines = parts(audit("job", "--run", str(run.directory), "--steps"), "step")
    assert len([e for e in lines if e["denied"] == "RevokedToken"]) == 2, "the rank's own log says the same"
    run.assert_nothing_left()


def test_without_a_volume_the_logs_are_in_the_run_and_pinned_by_nothing(start) -> None:
    run = start(manifest("digits", steps=20, checkpoint=None))
    assert run.end() == 0, run.err + run.explain()
    answer = audit("job", "--run", str(run.directory))
    assert answer["ok"]
    assert {(e["rank"], e["firstStep"], e["lastStep"]) for e in parts(answer, "lost")} == {(0, 1, 20), (1, 1, 20)}
    assert any("no checkpoint was committed" in note for note in answer["notes"])
