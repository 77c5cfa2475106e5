"""The bucket of failures of an address."""

import pytest

from kuangchao_contracts import errors as e
from kuangchao_operator.gate.limits import UNPROVEN, FailureLimits
from tests.unit.authority.kit import Clock

GARBAGE = e.MalformedTokenError("x")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> FailureLimits:
    return FailureLimits(clock, burst=3, per_second=0.5, addresses=2)


def fail(limits: FailureLimits, address: str, times: int = 3) -> None:
    for _ in range(times):
        limits.failed(address, GARBAGE)


def test_burst_and_refill(limits: FailureLimits, clock: Clock) -> None:
    fail(limits, "10.0.0.1", 2)
    assert not limits.exhausted("10.0.0.1")
    fail(limits, "10.0.0.1", 10)
    assert limits.exhausted("10.0.0.1")
    assert not limits.exhausted("10.0.0.2")
    for seconds, exhausted in ((1.9, True), (0.1, False)):
        clock.now += seconds
        assert limits.exhausted("10.0.0.1") is exhausted
    fail(limits, "10.0.0.1", 1)
    assert limits.exhausted("10.0.0.1")
    clock.now += 1_000
    fail(limits, "10.0.0.1", 2)
    assert not limits.exhausted("10.0.0.1")


def test_a_clock_that_jumps_back_gives_nothing(limits: FailureLimits, clock: Clock) -> None:
    fail(limits, "10.0.0.1")
    clock.now -= 1_000
    assert limits.exhausted("10.0.0.1")


def test_memory_is_bounded_and_the_oldest_failure_goes(limits: FailureLimits) -> None:
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"):
        fail(limits, address)
    assert len(limits) == 2
    assert [limits.exhausted(f"10.0.0.{n}") for n in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize(
    ("other", "same"),
    [("2001:db8::2", True), ("2001:db8::ffff:0:0:1", True), ("2001:db8:0:1::1", False), ("2001:db8::1%eth0", True)],
)
def test_ipv6_by_network(limits: FailureLimits, other: str, same: bool) -> None:
    fail(limits, "2001:db8::1")
    assert limits.exhausted(other) is same


@pytest.mark.parametrize("address", [None, "", "unix:", "::::"])
def test_addresses_that_are_none_share_a_bucket_or_have_their_own(limits: FailureLimits, address: str | None) -> None:
    for _ in range(3):
        limits.failed(address, GARBAGE)
    assert limits.exhausted(address)


@pytest.mark.parametrize(
    "kind",
    [
        e.StaleEpochError,
        e.ExpiredSignatureError,
        e.ReplayedTokenError,
        e.PermissionDeniedError,
        e.TooManyFailuresError,
        e.ConflictError,
        e.UnavailableError,
    ],
)
def test_failures_of_known_callers_do_not_count(limits: FailureLimits, kind: type[e.KuangchaoError]) -> None:
    assert kind not in UNPROVEN
    limits.failed("10.0.0.1", kind("x"))
    assert len(limits) == 0
