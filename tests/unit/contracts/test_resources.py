"""Resources are compared by whole segments; policy is default deny."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts import errors as e
from kuangchao_contracts import resources
from kuangchao_contracts.policy import BUILT_IN, READ_ONLY
from kuangchao_contracts.ports import OPERATIONS

SEGMENT = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
PATH = st.lists(SEGMENT, min_size=3, max_size=8)


@given(PATH, PATH)
def test_a_grant_covers_exactly_itself(granted: list[str], wanted: list[str]) -> None:
    assert resources.covers("/".join(granted), "/".join(wanted)) == (granted == wanted)


@given(PATH, SEGMENT)
def test_a_wildcard_covers_one_whole_segment(path: list[str], other: str) -> None:
    grant = "/".join([*path[:-1], "*"])
    assert resources.covers(grant, "/".join([*path[:-1], other]))
    assert not resources.covers(grant, "/".join([path[0] + "x", *path[1:]]))
    if len(path) < 8:
        assert not resources.covers(grant, "/".join([*path, other]))
    assert resources.narrower(grant, grant)
    assert resources.narrower(grant, "/".join(path))
    assert not resources.narrower("/".join(path), grant)


@pytest.mark.parametrize(
    "text", ["", "a", "a/b", "A/b/c", "a/b/c/", "/a/b/c", "a//c", "a/b/_cluster", "-a/b/c", "a/b/c-"]
)
def test_illegal_resources(text: str) -> None:
    with pytest.raises(e.InvalidResourceError):
        resources.parse(text)


@pytest.mark.parametrize("text", ["*/b/c", "a/*/c", "a/b/c*", "a/b/**", "*"])
def test_illegal_wildcards(text: str) -> None:
    with pytest.raises(e.WildcardForbiddenError):
        resources.parse(text, allow_wildcard=True)


def test_a_request_never_holds_a_wildcard() -> None:
    assert resources.parse("a/b/*", allow_wildcard=True) == ("a", "b", "*")
    with pytest.raises(e.WildcardForbiddenError):
        resources.parse("a/b/*")


@pytest.mark.parametrize("op", OPERATIONS)
def test_governance_holds_no_operation_that_changes_anything(op: str) -> None:
    if op in READ_ONLY:
        assert not OPERATIONS[op].one_shot
    else:
        with pytest.raises(e.SeparationOfDutyError):
            BUILT_IN.right("layer:governance", op)


@pytest.mark.parametrize("subject", ["", "layer", "layer:", "layer:none", "user:root", "agents:x", "AGENT:x"])
def test_unknown_subjects_hold_nothing(subject: str) -> None:
    for op in OPERATIONS:
        with pytest.raises(e.PermissionDeniedError):
            BUILT_IN.right(subject, op)
