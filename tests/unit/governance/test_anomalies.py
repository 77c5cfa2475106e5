"""Each rule fires on its case and not on the harmless one beside it; a quiet trail has no finding."""

import random
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuangchao_contracts.audit import AuditRecord, Decision, Stage
from kuangchao_operator.layers.governance.anomalies import RULES, Finding, Rule
from kuangchao_operator.layers.governance.follower import Follower, find
from kuangchao_operator.layers.governance.windows import KEPT, LENGTH, Memory, Window, start_of, window
from tests.unit.governance.trail import (
    AGENTS,
    GOVERNANCE,
    RESOURCE,
    UID,
    at,
    denied,
    heartbeats,
    queries,
    quiet,
    record,
)

LATE = 12
USER = "user:eve"


def user(window: int, verb: str, *, allowed: bool, count: int = 1, name: str = USER) -> list[AuditRecord]:
    make = record if allowed else denied
    more = () if allowed else ("HTTP403",)
    return [make(at(window, n), name, f"kubernetes.{verb}", *more, job_uid="") for n in range(count)]


def more_heartbeats(count: int, agent: str = AGENTS[0]) -> list[AuditRecord]:
    return [heartbeats(at(LATE, 200), agent, count)]


def of_over(when: datetime, op: str, uid: str = "uid-over") -> AuditRecord:
    """A layer's call for a job that ends, `over`."""
    return record(when, "layer:execution", op, resource="team-a/jobs/over", job="over", job_uid=uid)


def ended(uid: str = "uid-over") -> list[AuditRecord]:
    return [of_over(at(2), "execution.launch"), of_over(at(LATE), "execution.reclaim", uid)]


def stale(window: int, seconds: float, uid: str = "uid-over") -> list[AuditRecord]:
    return [denied(at(window, seconds), "agent:team-a/over/w-0-0", "execution.join", "StaleEpoch", job_uid=uid)]


def reasons(reason: str, count: int, window: int = LATE, subject: str = "unverified") -> list[AuditRecord]:
    return [denied(at(window, n), subject, "state.assess", reason) for n in range(count)]


# what is added to a quiet trail, with the rule that must fire
CASES: dict[str, tuple[Rule, list[AuditRecord]]] = {
    "governance tries to stop a job": (
        Rule.READ_ONLY_WRITES,
        [denied(at(LATE), GOVERNANCE, "execution.stop", "InvalidAudience")],
    ),
    "somebody who only reads tries to write": (
        Rule.READ_ONLY_WRITES,
        [*user(3, "get", allowed=True, count=9), *user(LATE, "patch", allowed=False, count=3)],
    ),
    "an agent calls ten times as often as before": (Rule.TOKEN_USE, more_heartbeats(3_000)),
    "a new agent calls ten times as often as its like": (
        Rule.TOKEN_USE,
        more_heartbeats(3_000, "agent:team-b/other/w-0-0"),
    ),
    "one subject is refused again and again": (
        Rule.DENIALS_RISING,
        reasons("PermissionDenied", 25, subject=AGENTS[3]),
    ),
    "many refusals in one counted record": (
        Rule.DENIALS_RISING,
        [denied(at(LATE), "unverified", "state.assess", "InvalidSignature", count=40_000)],
    ),
    "a token after its job was over": (Rule.CLOSED_JOB, [*ended(), *stale(LATE, 121)]),
    "long after, in another window": (Rule.CLOSED_JOB, [*ended(), *stale(LATE + 5, 0)]),
    "the layer reclaimed under no uid": (Rule.CLOSED_JOB, [*ended("-"), *stale(LATE + 1, 0)]),
    "a namesake runs by now": (
        Rule.CLOSED_JOB,
        [
            *ended(),
            of_over(at(LATE, 5), "execution.launch", "uid-namesake"),
            *stale(LATE, 200),
        ],
    ),
    "a one-shot twice": (Rule.REPLAY, reasons("ReplayedToken", 1, subject=AGENTS[0])),
    "the trail is read by somebody": (Rule.TRAIL_QUERIES, queries(LATE, 400)),
    "tokens of no key of ours": (Rule.UNKNOWN_KEYS, reasons("UnknownKey", 3)),
}
HARMLESS: dict[str, list[AuditRecord]] = {
    "governance reads": [record(at(LATE), GOVERNANCE, "governance.query", stage=Stage.READ)],
    "governance is refused a query": [denied(at(LATE), GOVERNANCE, "governance.query", "ExpiredSignature")],
    "an agent is refused a write": [denied(at(LATE), AGENTS[0], "state.commit_checkpoint", "OneShotRequired")],
    "somebody who writes is refused some": [
        *user(3, "create", allowed=True),
        *user(LATE, "delete", allowed=False, count=9),
    ],
    "and wrote only later": [*user(LATE, "delete", allowed=False, count=9), *user(LATE, "create", allowed=True)],
    "somebody is refused twice": user(LATE, "patch", allowed=False, count=2),
    "somebody is refused reading": user(LATE, "get", allowed=False, count=9),
    "an agent calls twice as often": more_heartbeats(300),
    "a rare call is made ten times": [
        record(at(LATE, n), AGENTS[0], "state.commit_checkpoint") for n in range(10)
    ],
    "a whole new gang": [r for n in range(8) for r in more_heartbeats(300, f"agent:team-b/other/w-0-{n}")],
    "intents without results": [
        record(at(LATE, n), "layer:execution", "execution.stop", stage=Stage.INTENT, decision=Decision.ERROR)
        for n in range(200)
    ],
    "every agent of a gang is refused once, at a restart": [
        denied(at(LATE), agent, "execution.heartbeat", "StaleEpoch") for agent in AGENTS
    ],
    "an old attempt of a job that goes on": stale(LATE, 200, UID),
    "the last heartbeat of a job": [*ended(), *stale(LATE, 119)],
    "resumed after it was freed": [
        *ended(),
        of_over(at(LATE, 100), "execution.launch"),
        *stale(LATE, 200),
    ],
    "another job was over": [*ended(), *stale(LATE, 200, "uid-third")],
    "a one-shot older than the store": reasons("ReplayStoreLost", 5),
    "the trail is read by a person": queries(LATE, 70),
    "a retired key": reasons("RetiredKey", 9),
    "an unknown key once": reasons("UnknownKey", 2),
}  # fmt: skip


def written(records: list[AuditRecord]) -> list[AuditRecord]:
    return sorted(records, key=lambda record: record.ts)


def found(added: list[AuditRecord]) -> list[Finding]:
    return find(written([*quiet(LATE + 6), *added]))


def cut(records: list[AuditRecord]) -> list[Window]:
    starts = sorted({start_of(record.ts) for record in records})
    return [window(start, [record for record in records if start_of(record.ts) == start]) for start in starts]


def test_a_quiet_trail_has_no_finding() -> None:
    assert found([]) == []
    assert find([]) == []


@pytest.mark.parametrize(("rule", "added"), CASES.values(), ids=CASES)
def test_a_rule_fires_on_its_case_alone(rule: Rule, added: list[AuditRecord]) -> None:
    findings = found(added)
    assert [finding.rule for finding in findings] == [rule]
    finding = findings[0]
    assert finding.start <= max(record.ts for record in added) < finding.end
    assert finding.advice
    assert finding.severity in {"high", "medium"}
    assert set(finding.opids) & {record.opid for record in added}


@pytest.mark.parametrize("added", HARMLESS.values(), ids=HARMLESS)
def test_no_rule_fires_on_what_is_harmless(added: list[AuditRecord]) -> None:
    assert found(added) == []


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _ in CASES.values()} == set(Rule)
    assert len(RULES) == len(Rule)


def test_a_finding_has_the_count_and_the_norm() -> None:
    (finding,) = found(more_heartbeats(3_000))
    assert finding.subject == AGENTS[0]
    assert 3_250 < finding.count < 3_350
    assert finding.norm == pytest.approx(300, rel=0.05)
    assert finding.record()["rule"] == "token-use"


def test_without_a_past_nothing_is_called_unusual() -> None:
    assert find([*queries(0, 4_000), heartbeats(at(0, 299), AGENTS[0], 90_000)]) == []


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(CASES)))
def test_order_inside_a_window_does_not_matter(chance: random.Random, case: str) -> None:
    records = written([*quiet(LATE + 1), *CASES[case][1]])
    shuffled = []
    for each in cut(records):
        some = list(each.records)
        chance.shuffle(some)
        shuffled += some
    assert find(shuffled) == find(records)


def test_memory_has_a_bound() -> None:
    memory = Memory()
    for each in cut(quiet(KEPT + 10)):
        memory = memory.after(each)
    assert len(memory.uses) == len(memory.denials) == KEPT
    assert memory.uids == {RESOURCE: UID}
    assert memory.closed == {}


def test_windows_are_the_same_for_every_reader() -> None:
    windows = cut(quiet(3)[5:])
    assert [each.start.timestamp() % LENGTH.total_seconds() for each in windows] == [0, 0, 0]
    assert all(each.start <= r.ts < each.end for each in windows for r in each.records)


class TestFollower:
    def test_a_window_is_judged_once_and_when_its_late_records_are_in(self) -> None:
        follower, (replayed,) = Follower(), reasons("ReplayedToken", 1)
        follower.take(replayed)
        assert follower.findings(at(LATE + 1, 89)) == []
        assert [finding.rule for finding in follower.findings(at(LATE + 1, 90))] == [Rule.REPLAY]
        follower.take(replayed)
        assert follower.findings(at(LATE + 9)) == []
        assert follower.unseen == 1

    def test_what_is_held_has_a_bound(self) -> None:
        follower = Follower(max_records=10)
        for each in reasons("UnknownKey", 50):
            follower.take(each)
        assert follower.unseen == 40
        assert [finding.count for finding in follower.findings(at(LATE + 2))] == [10]
        follower.take(reasons("UnknownKey", 1, LATE + 3)[0])
        assert follower.unseen == 40
