"""Authority on real pods: what happened is proved afterwards, rights are taken back and changed while a job trains."""

import json
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.authority import (
    APART,
    POLICY,
    STEPS,
    VOLUME,
    Walk,
    WalkingJob,
    config_map,
    flip,
    jwks,
    metric,
    no_token_is_shown,
    policy_kept,
    set_value,
    value_kept,
    write_policy,
)
from tests.e2e.cluster import (
    A_COMMAND,
    JWT,
    KILL_RANK,
    NAMESPACE,
    RELEASE_NAMESPACE,
    VOLUMES,
    Job,
    audit,
    eventually,
    get,
    items,
    kuangchao,
    kubectl,
    refused,
)
from tests.e2e.conftest import build

# ---- reconstruction


def test_a_job_with_a_killed_rank_is_put_in_order(walk: Walk, reference: dict[int, str], tmp_path: Path) -> None:
    job = walk("rebuilt", 0.25, checkpoint={"everySteps": APART})
    committed = job.wait_commit_after(0)
    job.wait_step(committed + 5)
    victim = max(p["metadata"]["name"] for p in job.pods())
    assert "killed" in kubectl("exec", "-n", NAMESPACE, victim, "--", "python", "-c", KILL_RANK)
    job.wait_attempt(after=1)
    job.finish(reference)
    answer = json.loads(
        kuangchao("audit", "job", f"{NAMESPACE}/{job.name}", "--checkpoints", str(VOLUME), "-o", "json")
    )
    assert answer["ok"] and answer["logs"] and answer["uid"] == job.object()["metadata"]["uid"]
    calls_are_in_order(_of(answer, "call"))
    every_commit_pins_both_ranks(answer)
    tail_is_declared_lost(answer)
    one_flipped_byte_is_named(job, tmp_path / "copy")


def _of(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in answer["timeline"] if entry["kind"] == kind]


def calls_are_in_order(calls: list[dict[str, Any]]) -> None:
    assert [c["seq"] for c in calls] == sorted(c["seq"] for c in calls)
    assert [c for c in calls if c["result"] in ("error", "unfinished")] == []
    done = [f"{c['operation']} {c['attempt']}" for c in calls if c["result"] == "allow"]
    order = iter(done)
    # what has ended belongs to no attempt, and its token says 1
    expected = (
        "strategy.plan 1", "execution.launch 1", "execution.join 1", "execution.join 1", "state.commit_checkpoint 1",
        "state.assess 1", "execution.launch 2", "execution.join 2", "execution.join 2", "state.commit_checkpoint 2",
        "execution.reclaim 1",
    )  # fmt: skip
    assert all(wanted in order for wanted in expected), done
    control = [c for c in calls if not c["operation"].endswith(("heartbeat", "feed"))]
    assert {len(c["token"]) for c in control} == {22}
    one_shots = [c["token"] for c in calls if c["operation"] in ("execution.launch", "state.commit_checkpoint")]
    assert len(one_shots) == len(set(one_shots)), "each has a token of its own"


def every_commit_pins_both_ranks(answer: dict[str, Any]) -> None:
    commits = [
        c["seq"] for c in _of(answer, "call") if (c["operation"], c["result"]) == ("state.commit_checkpoint", "allow")
    ]
    pinned = _of(answer, "steps")
    assert {(e["pinnedBy"]["seq"], e["rank"]) for e in pinned} == {(seq, rank) for seq in commits for rank in (0, 1)}
    for rank in (0, 1):
        spans = [(e["firstStep"], e["lastStep"]) for e in pinned if e["rank"] == rank]
        assert spans == [(first, first + APART - 1) for first in range(1, STEPS, APART)], (
            "no step is missing, none is there twice"
        )


def tail_is_declared_lost(answer: dict[str, Any]) -> None:
    """What the killed rank had not handed to its file died with it; its peer handed over what it had, unless it was
    ended before it knew."""
    last = max(e["lastStep"] for e in _of(answer, "steps") if e["attempt"] == 1)
    tails = [e for e in _of(answer, "lost") if e["attempt"] == 1 and e["rank"] == 0]
    assert len(tails) <= 1
    for tail in tails:
        assert tail["bound"] == APART and tail["pinnedBy"] is None
        # a commit that failed adds its own
        assert tail["firstStep"] == last + 1 and tail["lastStep"] < last + 2 * APART


def one_flipped_byte_is_named(job: Job, copy: Path) -> None:
    shutil.copytree(job.checkpoint_directory(), copy)
    command = ("audit", "job", f"{NAMESPACE}/{job.name}", "--checkpoints", str(copy), "-o", "json")
    assert json.loads(kuangchao(*command))["ok"]
    log = copy / "oplog" / "att-2.rank-1.jsonl"
    flip(log, log.stat().st_size // 2)
    (problem,) = json.loads(kuangchao(*command, code=1))["problems"]
    assert "rank 1, attempt 2: att-2.rank-1.jsonl line " in problem


# ---- proof of the record


def test_the_record_is_proved(cluster: None, tmp_path: Path) -> None:
    keys, anchor = tmp_path / "audit-keys.json", tmp_path / "head"
    keys.write_text(config_map("kuangchao-trust", "audit-keys.json"))
    anchor.write_text(config_map("kuangchao-audit-head", "checkpoint"))
    report = json.loads(kuangchao("audit", "verify", "-o", "json"))
    assert report["ok"] and report["problems"] == [] and report["records"] > 0
    assert report["anchors"] == 1 and report["signaturesChecked"]
    stored = audit("--since", "1h", "--limit", "1")[0]
    one_record_is_proved(stored, keys, tmp_path / "proof.json")
    offline = ("--audit-key", str(keys), "--anchor", str(anchor), "-o", "json")
    copy = copied_store(tmp_path / "audit")
    assert json.loads(kuangchao("audit", "verify", "--directory", str(copy), *offline))["ok"]
    day = copy / f"audit-{stored['record']['ts'][:10]}.sqlite"
    flip(day, day.read_bytes().index(f'"opid":"{stored["record"]["opid"]}"'.encode()) + 8)
    problems = json.loads(kuangchao("audit", "verify", "--directory", str(copy), *offline, code=1))["problems"]
    assert problems and problems[0].startswith(f"{day.name}: record {stored['seq']}"), problems


def one_record_is_proved(stored: dict[str, Any], keys: Path, proof: Path) -> None:
    proof.write_text(kuangchao("audit", "prove", str(stored["seq"])))
    check = ("audit", "check-proof", str(proof), "--audit-key", str(keys), "-o", "json")
    assert json.loads(kuangchao(*check))["record"] == stored["record"]
    proof.write_text(proof.read_text().replace(stored["record"]["opid"], secrets.token_hex(12)))
    kuangchao(*check, code=1)


def copied_store(target: Path) -> Path:
    """A copy of the operator's store, each day as of one moment."""
    claim = get("persistentvolumeclaims", "kuangchao-state", RELEASE_NAMESPACE)
    assert claim is not None
    source = VOLUMES / claim["spec"]["volumeName"] / "audit"
    target.mkdir()
    for day in source.glob("audit-*.sqlite"):
        reader, copy = sqlite3.connect(f"file:{day}?mode=ro", uri=True), sqlite3.connect(target / day.name)
        reader.backup(copy)
        copy.close()
        reader.close()
    return target


# ---- taking back


def test_a_revoked_job_rests_until_it_is_restored(walk: Walk, reference: dict[int, str]) -> None:
    job = walk("revoked", 0.1)
    job.wait_commit_after(0)
    named = f"{NAMESPACE}/{job.name}"
    kuangchao("token", "revoke", "--job", named)
    try:
        job.wait_phase("Suspended")
        assert job.condition("Suspended")["reason"] == "Revoked"
        eventually(lambda: not job.pods() and not job.bundles(), "freed")
    finally:
        kuangchao("token", "restore", "--job", named)
    eventually(lambda: len(job.bundles()) == 2, "started anew")
    status = job.finish(reference)
    assert status["restarts"] == 0, "its budget is not charged for it"
    acts = [r["detail"] for op in ("token.revoke", "token.restore") for r in job.records("--operation", op)]
    assert [act.split(" by ")[0] for act in acts] == [f"job.{job.object()['metadata']['uid']}"] * 2


def test_a_denied_key_disturbs_no_job(walk: Walk, reference: dict[int, str]) -> None:
    job = walk("rekeyed", 0.2)
    job.wait_commit_after(0)
    (old,) = job.kids()
    assert old in {key["kid"] for key in jwks()["keys"] if key["state"] == "active"}
    kuangchao("token", "revoke", "--kid", old)
    try:
        eventually(lambda: job.kids() and old not in job.kids(), "tokens by another key")
        assert old in jwks()["denied"] and old in jwks(NAMESPACE)["denied"]
        assert old not in {key["kid"] for key in jwks()["keys"]}
    finally:
        patch = json.dumps([{"op": "remove", "path": f"/data/kid.{old}"}])
        kubectl("patch", "cm", "kuangchao-revocations", "-n", RELEASE_NAMESPACE, "--type=json", "-p", patch)
    job.wait_commit_after(job.newest())
    no_token_is_shown()
    status = job.finish(reference)
    assert (status["attempt"], status["restarts"]) == (1, 0)
    assert job.records("--operation", "state.commit_checkpoint")[-1]["kid"] != old
    assert old in jwks()["denied"], "for good"


# ---- exchange


def test_pods_of_a_large_job_exchange_their_accounts_token(walk: Walk, reference: dict[int, str]) -> None:
    """What is large is a setting; setting it back ends the operator while the job trains."""
    with value_kept("exchangeAbovePods") as usual:
        set_value("exchangeAbovePods", "1")
        job = walk("exchanged", 0.3)
        job.wait_commit_after(0)
        assert job.bundles() == {}
        pods = sorted(p["metadata"]["name"] for p in job.pods())
        assert sorted(set(exchanges(job))) == pods
        a_new_lease_replaces_one_that_is_taken_back(job, pods[1])
        assert JWT.search(held_in(pods[1])), "this is what tokens look like"
        no_token_is_shown()
        set_value("exchangeAbovePods", usual)
    job.wait_commit_after(job.newest())
    assert job.bundles() == {}, "pods that run keep the way they started with"
    status = job.finish(reference)
    assert (status["attempt"], status["restarts"]) == (1, 0)


def exchanges(job: WalkingJob) -> list[str]:
    """The pod of each exchange that was granted."""
    granted = job.records("--operation", "token.exchange", "--result", "allow")
    return [record["subject"].rpartition("/")[2] for record in granted]


def a_new_lease_replaces_one_that_is_taken_back(job: WalkingJob, pod: str) -> None:
    (lease,) = {r["jti"] for r in job.records("--operation", "execution.join") if r["subject"].endswith(f"/{pod}")}
    before = exchanges(job).count(pod)
    kuangchao("token", "revoke", "--jti", lease)
    try:
        eventually(lambda: exchanges(job).count(pod) > before, f"{pod} has exchanged again", A_COMMAND)
    finally:
        kuangchao("token", "restore", "--jti", lease)


def held_in(pod: str) -> str:
    """The bundle as it lies inside a pod."""
    return kubectl("exec", "-n", NAMESPACE, pod, "--", "cat", "/var/run/kuangchao/token/bundle.json")


# ---- people


@pytest.fixture
def people(cluster: None) -> Iterator[None]:
    """RBAC for four people: the stranger could change any job as far as RBAC goes."""
    roles = {"olga": "editor", "kolya": "collaborator", "vera": "viewer", "sam": "editor"}
    for user, role in roles.items():
        kubectl(
            "create", "rolebinding", f"e2e-{user}", "-n", NAMESPACE, f"--user={user}", f"--clusterrole=kuangchao-{role}"
        )
    for user, role in roles.items():
        verb = {"viewer": "get", "collaborator": "patch", "editor": "create"}[role]
        eventually(lambda user=user, verb=verb: may(user, verb), f"the rights of {user} are in force")
    yield
    kubectl("delete", "rolebinding", "-n", NAMESPACE, "--ignore-not-found", *(f"e2e-{user}" for user in roles))


def may(user: str, verb: str) -> bool:
    """Whether RBAC lets somebody do something with jobs."""
    return "yes" in kubectl(
        "auth", "can-i", verb, "trainingjobs.kuangchao.io", "-n", NAMESPACE, f"--as={user}", check=False
    )


def test_people_do_what_the_job_lets_them(people: None, apply: Callable[..., Job]) -> None:
    access = {"owner": "olga", "collaborators": ["kolya"], "viewers": ["vera"]}
    made = build("shared", training={"steps": 100_000}, access=access)
    assert "a job is created by its owner, and you are sam" in refused_as(
        "sam", "create", "-f", "-", stdin=yaml.safe_dump(made)
    )
    job = apply(made)
    job.wait_phase("Admitted", "Starting", "Running")
    suspend = change(job, {"suspend": True})
    assert f"job {NAMESPACE}/shared belongs to olga: only its owner" in refused_as("sam", *suspend)
    assert "cannot patch resource" in refused_as("vera", *suspend)
    assert job.name in kubectl("get", "tjob", "-n", NAMESPACE, "--as=vera")
    assert "may be changed only by its owner olga" in refused_as("kolya", *change(job, {"access": {"owner": "kolya"}}))
    assert not job.object()["spec"].get("suspend")
    kubectl(*suspend, "-n", NAMESPACE, "--as=kolya")
    job.wait_phase("Suspended")
    acts = {("acting as sam", "deny"), ("acting as vera", "deny"), ("acting as kolya", "allow")}
    eventually(lambda: acts <= recorded_acts(job), "who did it is on record", A_COMMAND)


def refused_as(person: str, *args: str, stdin: str | None = None) -> str:
    return refused(*args, "-n", NAMESPACE, f"--as={person}", stdin=stdin)


def change(job: Job, spec: dict[str, Any]) -> tuple[str, ...]:
    return ("patch", "trainingjob", job.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def recorded_acts(job: Job) -> set[tuple[str, str]]:
    """What the API server said of changes of this job: as whom, and whether it let them."""
    created = job.object()["metadata"]["creationTimestamp"]
    found = audit("--operation", "kubernetes.patch", "--job", job.name, "-n", NAMESPACE, "--since", created)
    return {(r["record"]["detail"], r["record"]["decision"]) for r in found}


# ---- policy

NO_COMMITS = """\
extends: built-in
denies:
  - id: {rule}
    subject: agent
    operations: [state.commit_checkpoint]
    resources: ["task:owned"]
"""
BROKEN = """\
extends: built-in
grants:
  - id: anything
    subject: agent
    operations: [{operation}]
    resources: ["task:owned"]
"""


def test_a_right_is_taken_away_and_given_back_while_a_job_trains(walk: Walk, reference: dict[int, str]) -> None:
    job = walk("governed", 0.5, checkpoint={"everySteps": 4})
    rule, operation = f"no-commits-{secrets.token_hex(4)}", f"state.x{secrets.token_hex(4)}"
    job.wait_commit_after(0)
    with policy_kept():
        write_policy(NO_COMMITS.format(rule=rule), "security-officer")
        eventually(lambda: refused_commits(job), "a commit is refused", A_COMMAND)
        kept = job.newest()
        eventually(lambda: reload_with(f"added {rule};"), "the reload is on record", A_COMMAND)
        assert "; by security-officer at " in reload_with(f"added {rule};")
        write_policy(BROKEN.format(operation=operation), "somebody")
        eventually(lambda: any(operation in event for event in stale_events()), "PolicyStale is told")
        assert metric("kuangchao_policy_stale") == 1
        before = refused_commits(job)
        eventually(lambda: refused_commits(job) > before, "the policy before it is in force", A_COMMAND)
        assert job.newest() == kept
        assert not any(operation in text for text in reloads())
    job.wait_commit_after(kept)
    assert metric("kuangchao_policy_stale") == 0
    eventually(lambda: reload_with(f"removed {rule};"), "the way back is on record", A_COMMAND)
    no_token_is_shown()
    status = job.finish(reference)
    assert (status["attempt"], status["restarts"]) == (1, 0), "training went on"


def refused_commits(job: WalkingJob) -> int:
    """How many there were; an agent asks for the one-shot of its commit first, and is not given it."""
    denials = [f"{r['op']} {r['reason']} {r['detail']}" for r in job.records("--result", "deny")]
    asked = ("interface.exchange ExchangeDenied not allowed: PermissionDenied", "state.commit_checkpoint StalePolicy ")
    return sum(text.startswith(asked) for text in denials)


def reloads() -> list[str]:
    """What is recorded of the policies that came into force."""
    found = [r["record"] for r in audit("--operation", "policy.reload", "--since", "1h")]
    return [record["detail"] for record in found if record["decision"] == "allow"]


def reload_with(words: str) -> str:
    """The record of a reload that says this; "" while there is none."""
    return next((text for text in reloads() if words in text), "")


def stale_events() -> list[str]:
    events = items("events", RELEASE_NAMESPACE)
    return [e["message"] for e in events if (e["reason"], e["involvedObject"]["name"]) == ("PolicyStale", POLICY)]


# ---- secrets


def test_no_token_is_left_in_logs_events_or_objects(cluster: None) -> None:
    assert '"audit checkpoint"' in no_token_is_shown()["control plane"], "the operator's log is among it"
