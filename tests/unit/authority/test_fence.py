"""The fence: attempts only rise, closed jobs stay closed, revocations are what the list says now."""

import pytest

from kuangchao_operator.gate import fence as module
from kuangchao_operator.gate.fence import JobFence


@pytest.fixture
def fence() -> JobFence:
    return JobFence()


def test_unknown_jobs_are_closed(fence: JobFence) -> None:
    assert fence.attempt("a") is None
    fence.close("a")
    assert fence.attempt("a") is None


def test_a_late_event_never_brings_an_older_attempt_back(fence: JobFence) -> None:
    for seen, current in ((1, 1), (3, 3), (2, 3), (3, 3), (4, 4)):
        fence.set("a", seen)
        assert fence.attempt("a") == current


def test_a_closed_job_opens_only_with_a_higher_attempt(fence: JobFence) -> None:
    fence.set("a", 3)
    fence.close("a")
    fence.close("a")
    fence.set("a", 3)
    assert fence.attempt("a") is None
    fence.set("a", 4)
    assert fence.attempt("a") == 4


def test_memory_of_closed_jobs_is_bounded(fence: JobFence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLOSED", 10)
    for number in range(100):
        fence.set(str(number), 1)
        fence.close(str(number))
    assert len(fence._closed) == 10


def test_what_is_taken_back_is_exactly_what_the_list_says(fence: JobFence) -> None:
    fence.take_back({"late": 20, "soon": 10}, ["a"])
    assert (fence.revoked("late"), fence.revoked("other")) == (True, False)
    assert fence.revocations() == ("soon", "late")
    assert (fence.job_revoked("a"), fence.job_revoked("b")) == (True, False)
    fence.take_back({"soon": 10}, ())
    assert (fence.revoked("late"), fence.job_revoked("a")) == (False, False)
