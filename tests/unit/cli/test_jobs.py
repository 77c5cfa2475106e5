"""What the commands say of jobs, and what they ask to change."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from kubernetes.client.exceptions import ApiException

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.audit import AuditRecord, Decision, Stage, StoredRecord
from kuangchao_contracts.errors import ConflictError, InvalidInputError
from kuangchao_contracts.reasons import Phase
from kuangchao_contracts.wire import ErrorReply, to_error
from kuangchao_operator.cli import audit_commands, job_commands, present, why
from kuangchao_operator.cli.cluster import translated
from kuangchao_operator.cli.logs_command import no_output, pod_index
from kuangchao_operator.cli.options import point_in_time
from kuangchao_operator.cli.output import age, exit_code, table
from kuangchao_operator.cli.progress import LineView
from kuangchao_operator.layers.execution.why import Explanation
from tests.unit.cli.jobs import NOW, condition, job

OVER_LIMIT = condition("Suspended", "RestartLimitExceeded")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({}, None),
        ({"phase": "Running"}, None),
        ({"phase": "Complete"}, 0),
        ({"phase": "Failed"}, 1),
        ({"phase": "Suspended", "conditions": [condition("Suspended", "Suspended")]}, None),
        ({"phase": "Suspended", "conditions": [OVER_LIMIT]}, 1),
        ({"phase": "Running", "conditions": [{**OVER_LIMIT, "status": "False"}]}, None),
        ({"phase": "Stalled", "conditions": [condition("Stalled", "Infeasible")]}, 3),
        ({"phase": "Stalled", "conditions": [condition("Stalled", "PoolNotFound")]}, None),
    ],
)
def test_watch_ends_when_the_job_does_not_go_on_by_itself(status: dict, code: int | None) -> None:
    assert job_commands.verdict(job(**status)) == code


@pytest.mark.parametrize(
    ("spec", "status", "change"),
    [
        ({}, {"phase": "Running"}, {}),
        ({"suspend": True}, {"phase": "Suspended"}, {"suspend": False}),
        ({}, {"conditions": [OVER_LIMIT]}, {"retryGeneration": 1}),
        ({"retryGeneration": 4}, {"conditions": [OVER_LIMIT], "retryGeneration": 4}, {"retryGeneration": 5}),
        ({"suspend": True}, {"conditions": [OVER_LIMIT]}, {"suspend": False, "retryGeneration": 1}),
    ],
)
def test_resume_changes_only_what_holds_the_job(spec: dict, status: dict, change: dict) -> None:
    assert job_commands.resume_change(job(spec=spec, **status)) == change


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"phase": "Complete", "attempt": 1}, "was deleted when the job became Complete"),
        ({"phase": "Failed", "attempt": 2}, "was deleted when the job became Failed"),
        ({"phase": "Suspended", "attempt": 1}, "was deleted when the job became Suspended"),
        ({"phase": "Suspended"}, "has not started"),
        ({"phase": "Starting", "attempt": 1}, "has not started"),
    ],
)
def test_missing_output_is_gone_or_still_to_come(status: dict, words: str) -> None:
    assert words in no_output(job(**status), "digits-0")


@pytest.mark.parametrize(
    ("phase", "reason", "told"),
    [
        ("Queued", "WaitingForQuota", True),
        ("Stalled", "ExceedsMaxQuota", True),
        ("Stalled", "InvalidSpec", False),
        ("Stalled", "StorageNotFound", False),
        ("Starting", "WaitForStart", False),
        ("Failed", "UserError", False),
        ("Suspended", "Suspended", False),
    ],
)
def test_why_tells_of_the_pool_only_who_waits_for_it(phase: str, reason: str, told: bool) -> None:
    answer = Explanation(phase=Phase(phase), reason=reason, message="", pool="cpu", need=4, free=1, total=21)
    assert any("pool cpu" in line for line in why.lines(job(phase=phase), answer)) is told


def test_columns_are_those_of_kubectl() -> None:
    assert present.job_header(False) == ("name", "State", "Plan", "Ready", "Restarts", "Progress", "Age")
    row = present.job_row(
        job(phase="Running", planSummary="dp4", ready="2/2", restartBudget="0/3", progressText="120/300"), NOW, True
    )
    assert row == ("default", "digits", "Running", "dp4", "2/2", "0/3", "120/300", "3h")


def test_table_aligns_and_never_cuts() -> None:
    text = table(("name", "State"), [("a" * 30, "Running"), ("b", "")])
    assert text.splitlines() == [f"{'NAME':<30}   STATE", f"{'a' * 30}   Running", f"{'b':<30}   <none>"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (172_800, "2d"), (-5, "0s")],
)
def test_age(seconds: int, text: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0.95996", "0.9599"),
        ("1", "1"),
        ("12.3", "12.3"),
        ("1.5e-07", "1.5e-07"),
        ("nan", "nan"),
        ("-0.12345", "-0.1234"),
    ],
)
def test_figures_never_flatter(text: str, shown: str) -> None:
    assert present.number(text) == shown


def test_accuracy_comes_last() -> None:
    found = list(present.metric_lines({"accuracy": "0.97", "loss": "0.1", "zeta": "1"}))
    assert found == ["loss 0.1", "zeta 1", "accuracy 0.97"]


DESCRIBED = (
    "First failure: UserError (rank 3, pod digits-0-1, exit code 1, step 40, attempt 2)",
    "ValueError: bad label",
    "Attempts:   2",
    "1 of 3",
    "step 50",
    "sha256:abababababab",
    "Owner:      mei",
    "li",
    "node n1: 4 devices, pods 0-1",
    "Failed         True        5m  UserError  why",
)


def test_describe_tells_failure_attempts_checkpoints_and_people() -> None:
    failed = job(
        spec={"access": {"owner": "mei", "viewers": ["li"]}},
        phase="Failed",
        attempt=2,
        restarts=1,
        firstFailure={
            "reason": "UserError",
            "message": "ValueError: bad label",
            "rank": 3,
            "exitCode": 1,
            "attempt": 2,
            "step": 40,
            "pod": "digits-0-1",
            "time": NOW.isoformat(),
        },
        checkpoints=[{"step": 50, "attempt": 1, "path": "step-50.att-1", "digest": "ab" * 32, "time": NOW.isoformat()}],
        conditions=[condition("Failed", "UserError", message="why")],
        allocation=[{"node": "n1", "devices": 4, "pods": "0-1"}],
    )
    text = "\n".join(present.describe_job(failed, None, NOW))
    assert [wanted for wanted in DESCRIBED if wanted not in text] == []


def test_plans_that_ran_out_of_memory_are_shown_with_both_figures() -> None:
    plan = {"planHash": "a", "wish": "b", "attempt": 1, "step": 5}
    hungry = job(
        phase="Running",
        outOfMemory=[
            {**plan, "plan": "dp2 micro-batch 16", "measuredBytes": 3 * 2**30, "estimatedBytes": 2**30},
            {**plan, "plan": "dp2 micro-batch 8", "measuredBytes": 2**31},
        ],
        firstFailure={
            "reason": "OutOfMemory",
            "section": "train",
            "peakMemoryBytes": 3 * 2**30,
            "memoryLimitBytes": 2**32,
            "time": NOW.isoformat(),
        },
    )
    answer = Explanation(phase=Phase.RUNNING, reason="Running", message="", pool="cpu", need=4)
    for text in ("\n".join(present.describe_job(hungry, None, NOW)), "\n".join(why.lines(hungry, answer))):
        assert "  dp2 micro-batch 16 (attempt 1, step 5): measured 3.0 GiB, estimated 1.0 GiB" in text
        assert "  dp2 micro-batch 8 (attempt 1, step 5): measured 2.0 GiB, estimated nothing" in text
        assert "  peak 3.0 GiB of 4.0 GiB, section train" in text


@pytest.mark.parametrize(("rank", "pod", "index"), [(None, None, 0), (0, None, 0), (3, None, 1), (None, 1, 1)])
def test_logs_find_the_pod(rank: int | None, pod: int | None, index: int) -> None:
    assert pod_index(job(), rank, pod) == index


@pytest.mark.parametrize(
    ("rank", "pod", "field", "nearest"),
    [(4, None, "--rank", 3), (-1, None, "--rank", 0), (None, 2, "--pod", 1), (1, 1, "--pod", "one of both")],
)
def test_logs_of_a_missing_rank(rank: int | None, pod: int | None, field: str, nearest: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        pod_index(job(), rank, pod)
    assert (caught.value.field, caught.value.nearest) == (field, nearest)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", "2026-03-01T11:58:30+00:00"),
        ("1h", "2026-03-01T11:00:00+00:00"),
        ("7d", "2026-02-22T12:00:00+00:00"),
        ("1d2h3m", "2026-02-28T09:57:00+00:00"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02", "2026-01-02T00:00:00+00:00"),
    ],
)
def test_times(text: str, wanted: str) -> None:
    found = point_in_time("--since", text, NOW)
    assert found is not None
    assert found.isoformat() == wanted


@pytest.mark.parametrize("text", ["", "yesterday", "1w", "-1h", "h", "2026-13-01", "1h30"])
def test_bad_times(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--since") as caught:
        point_in_time("--since", text, NOW)
    assert caught.value.nearest == "1h or 2026-01-31T12:00:00Z"


def stored(seq: int, opid: str, stage: Stage, decision: Decision, **more: object) -> StoredRecord:
    record = AuditRecord(
        ts=datetime(2026, 1, 1, tzinfo=UTC), opid=opid, stage=stage, layer="execution", op="execution.launch",
        resource="a/jobs/x", subject="layer:execution", decision=decision, **more,
    )  # fmt: skip
    return StoredRecord(seq=seq, previous="", record=record)


def test_audit_shows_an_operation_as_one_line_and_an_unfinished_one_as_such() -> None:
    records = [
        stored(1, "one", Stage.INTENT, Decision.ERROR, reason="Pending"),
        stored(2, "two", Stage.INTENT, Decision.ERROR, reason="Pending"),
        stored(3, "one", Stage.RESULT, Decision.ALLOW, detail="attempt 1"),
        stored(4, "three", Stage.DENY, Decision.DENY, reason="StaleEpoch", count=7),
    ]
    assert [line[-2:] for line in audit_commands.lines(records)] == [
        ("unfinished", "-"),
        ("allow", "attempt 1"),
        ("deny", "StaleEpoch 7 calls"),
    ]


def test_audit_namespace_and_resource_must_agree() -> None:
    assert audit_commands.within("a", None) == "a"
    assert audit_commands.within("a", "a/jobs/x") == "a/jobs/x"
    with pytest.raises(InvalidInputError, match="--resource"):
        audit_commands.within("a", "ab/jobs/x")


def test_plain_progress_says_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView()
    for step, attempt in ((1, 1), (2, 1), (40, 1), (41, 1), (41, 2)):
        view.update(job(phase="Running", attempt=attempt, progress={"step": step, "totalSteps": 100, "percent": step}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "attempt 2" in lines[-1]


class Busy:
    """A cluster whose operator, or another person, writes between each reading and the first writing after it."""

    def __init__(self, generations: list[int]) -> None:
        self.generations, self.sent = generations, []

    def job(self, name: str) -> TrainingJob:
        found = job(spec={"suspend": True}, phase="Suspended")
        self.generation = self.generations.pop(0)
        metadata = {"generation": self.generation, "resource_version": f"v{len(self.generations)}"}
        return found.model_copy(update={"metadata": found.metadata.model_copy(update=metadata)})

    def patch_job(self, name: str, spec: dict, resource_version: str) -> TrainingJob:
        self.sent.append((spec, resource_version))
        if self.generations:
            raise ConflictError("the object has been modified")
        return job(spec=spec)


def test_resume_is_not_disturbed_by_what_the_operator_writes() -> None:
    cluster = Busy([4, 4, 4])
    assert job_commands.resumed(cluster, "digits")[1]
    assert cluster.sent == [({"suspend": False}, version) for version in ("v2", "v1", "v0")]


def test_resume_gives_way_to_another_person() -> None:
    with pytest.raises(ConflictError):
        job_commands.resumed(Busy([4, 4, 5, 5]), "digits")


def test_what_another_process_found_wrong_is_told_in_its_words() -> None:
    refusal = json.dumps({"error": "InvalidInput", "message": "seq=9: is not in the store; nearest legal value: 4"})
    told = to_error(400, ErrorReply.from_reply(refusal.encode()))
    body = json.dumps({"message": str(told)})
    with pytest.raises(InvalidInputError) as caught, translated("/v1/audit/prove"):
        raise ApiException(status=400, reason="Bad Request", body=body)
    assert str(caught.value) == "seq=9: is not in the store; nearest legal value: 4"
    assert exit_code(caught.value) == 2
