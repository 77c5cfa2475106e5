"""What people write into kuangchao-revocations, read: entries with an end, without one, past it, and nonsense."""

import pytest

from kuangchao_contracts.tokens import MAX_LEASE_SECONDS
from kuangchao_operator.gate.revocations import KEPT_SECONDS, Revocations, read, writers

NOW = 1_000_000.0
JTI, KID, UID = "A" * 22, "k" * 43, "11111111-2222-3333-4444-555555555555"


def test_every_kind_of_entry() -> None:
    found = read({f"jti.{JTI}": "1000100", f"kid.{KID}": "", f"job.{UID}": "because"}, NOW)
    assert found.revocations == Revocations({JTI: 1_000_100}, frozenset({KID}), frozenset({UID}))
    assert found.revocations.keys() == {f"jti.{JTI}", f"kid.{KID}", f"job.{UID}"}
    assert (found.stamps, found.expired, found.malformed) == ({}, frozenset(), {})


def test_a_token_without_an_end_gets_the_latest_that_it_can_have() -> None:
    found = read({f"jti.{JTI}": " "}, NOW)
    assert found.revocations.tokens == {JTI: 1_000_300}
    assert found.stamps == {f"jti.{JTI}": "1000300"}


@pytest.mark.parametrize(("past", "kept"), [(KEPT_SECONDS - 1, True), (KEPT_SECONDS, False)])
def test_an_entry_outlives_its_time_so_that_one_of_this_moment_outlives_any_token(past: int, kept: bool) -> None:
    assert KEPT_SECONDS > MAX_LEASE_SECONDS
    found = read({f"jti.{JTI}": str(int(NOW) - past)}, NOW)
    assert (JTI in found.revocations.tokens) is kept
    assert found.expired == (frozenset() if kept else {f"jti.{JTI}"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jti.short", ""),
        (f"jti.{JTI}x", ""),
        (f"jti.{JTI[:-1]}é", ""),
        (f"kid.{JTI}", ""),
        ("job.", ""),
        ("job.a/b", ""),
        (f"JTI.{JTI}", ""),
        (JTI, ""),
        ("", ""),
    ],
)
def test_nonsense_is_named_and_takes_nothing_else_down(key: str, value: str) -> None:
    found = read({key: value, f"kid.{KID}": ""}, NOW)
    assert list(found.malformed) == [key]
    assert found.revocations == Revocations(kids=frozenset({KID}))


@pytest.mark.parametrize("value", ["tomorrow", "-1", "1" + "9" * 12, "1.5"])
def test_a_slip_in_the_time_leaves_no_token_good(value: str) -> None:
    found = read({f"jti.{JTI}": value}, NOW)
    assert found.revocations.tokens == {JTI: 1_000_300}
    assert found.stamps == {f"jti.{JTI}": "1000300"}
    assert "no time" in found.malformed[f"jti.{JTI}"]


def test_who_wrote_which_key() -> None:
    entry = {"manager": "kubectl-patch", "time": "T", "fieldsV1": {"f:data": {".": {}, f"f:kid.{KID}": {}}}}
    other = {"manager": "helm", "fieldsV1": {"f:metadata": {}}}
    assert writers({"metadata": {"managedFields": [other, entry]}}) == {f"kid.{KID}": "kubectl-patch at T"}
    assert writers({"metadata": {}}) == {}
