"""The policy as data: what a document may say, how it is read, and what it comes to."""

import hashlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts import errors as e
from kuangchao_contracts.policy import (
    BUILT_IN,
    BUILT_IN_DOCUMENT,
    Policy,
    changes,
    compile_policy,
    parse_document,
)
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_operator.policy.reader import read_policy
from tests.unit.authority.policies import BROKEN, GOOD

DIGEST = "0" * 64
TABLE = {
    "layer:execution": {"strategy.plan", "strategy.replan", "state.assess", "execution.launch", "execution.stop",
                        "execution.reclaim"},
    "layer:state": {"execution.stop", "execution.launch"},
    "layer:governance": {"governance.query", "governance.verify", "governance.prove"},
    "layer:interface": {"governance.query"},
    "agent": {"execution.join", "execution.heartbeat", "state.commit_checkpoint", "state.restore_point",
              "interface.exchange", "interface.feed"},
    "rank": {"topology.build", "topology.destroy", "execution.context", "state.submit_gradients", "state.save",
             "state.restore", "state.snapshot", "plugin.open_step", "plugin.save", "plugin.restore"},
}  # fmt: skip
"""Rights without any document. Changing them is a decision, so they stand here once more."""


def rule(**changed: Any) -> dict[str, Any]:
    good = {"id": "r", "subject": "agent", "operations": ["execution.join"], "resources": ["task:owned"]}
    return good | changed


def compiled(**document: Any) -> Policy:
    return compile_policy(parse_document(document), 2, DIGEST)


def read(text: str | bytes) -> Policy:
    return read_policy("policy.yaml", text if isinstance(text, bytes) else text.encode(), 7)


def test_the_built_in_rights() -> None:
    assert {who: set(ops) for who, ops in BUILT_IN.rights.items()} == TABLE
    assert BUILT_IN.generation == 1
    assert all(
        not right.one_shot and right.max_ttl == 300 for ops in BUILT_IN.rights.values() for right in ops.values()
    )


def test_the_built_in_document_survives_being_written_down() -> None:
    text = yaml.safe_dump(BUILT_IN_DOCUMENT.wire())
    for again in (read(text), read("extends: built-in")):
        assert again.replace(generation=1, sha256=BUILT_IN.sha256) == BUILT_IN


def test_json_round_trip() -> None:
    policy = read(GOOD)
    assert Policy.model_validate_json(policy.canonical()) == policy
    assert len(BUILT_IN.canonical()) < 4_096


def test_a_document() -> None:
    policy = read(GOOD)
    assert (policy.generation, policy.sha256) == (7, hashlib.sha256(GOOD.encode()).hexdigest())
    assert policy.permits("agent:a/b/c", "execution.join")
    assert not policy.permits("agent:a/b/c", "execution.stop")
    assert not policy.permits("layer:execution", "execution.launch")
    assert policy.right("agent", "execution.join").max_ttl == 240
    assert policy.right("agent", "state.commit_checkpoint").max_ttl == 20


def test_a_denial_is_added_to_the_built_in_rights() -> None:
    policy = compiled(extends="built-in", denies=[rule(operations=["interface.exchange"])])
    lost = {(who, op) for who, ops in TABLE.items() for op in ops if not policy.permits(who, op)}
    assert lost == {("agent", "interface.exchange")}
    assert changes(BUILT_IN, policy).added == ("r",)
    assert not changes(BUILT_IN, policy).removed


def test_a_denial_by_another_name_of_the_same_resource_denies() -> None:
    deny = rule(id="d", subject="rank", operations=["state.save"], resources=["task:owned"])
    grant = deny | {"id": "g", "resources": ["param-store:assigned"]}
    assert compiled(grants=[grant]).permits("rank", "state.save")
    assert not compiled(grants=[grant], denies=[deny]).permits("rank", "state.save")


def test_grants_add_up() -> None:
    one = rule(id="a", maxTTL=240)
    other = rule(id="b", maxTTL=250)
    assert compiled(grants=[one, other]).right("agent", "execution.join").max_ttl == 250
    plan = {"subject": "layer:execution", "operations": ["strategy.plan"]}
    strict, loose = rule(id="a", oneShot=True, **plan), rule(id="b", **plan)
    assert compiled(grants=[strict]).right("layer:execution", "strategy.plan").one_shot
    assert not compiled(grants=[strict, loose]).right("layer:execution", "strategy.plan").one_shot


HOLDERS = [(who, op) for who, ops in TABLE.items() for op in sorted(ops)]


def rules_of(pairs: list[tuple[str, str]], prefix: str) -> list[dict[str, Any]]:
    return [
        rule(id=f"{prefix}{i}", subject=who, operations=[op], resources=[BUILT_IN.rights[who][op].selectors[0].value])
        for i, (who, op) in enumerate(pairs)
    ]


@given(st.data())
def test_a_denial_beats_every_grant_in_any_order(data: st.DataObject) -> None:
    pairs = st.lists(st.sampled_from(HOLDERS), max_size=12)
    granted, denied = data.draw(pairs), data.draw(pairs)
    grants, denies = rules_of(granted, "g"), rules_of(denied, "d")
    policy = compiled(grants=grants, denies=denies)
    for who, op in HOLDERS:
        assert policy.permits(who, op) == ((who, op) in granted and (who, op) not in denied)
    shuffled = compiled(grants=data.draw(st.permutations(grants)), denies=data.draw(st.permutations(denies)))
    assert shuffled == policy


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_is_not_granted_is_denied(op: str) -> None:
    empty = compiled(grants=[])
    assert not [who for who in (*TABLE, "", "layer:none", "user:root") if empty.permits(who, op)]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"denies": [rule(operations=["interface.exchang"])]}, ["deny r", "interface.exchang'", "interface.exchange"]),
        ({"grants": [rule(operations=["execution.joi"])]}, ["grant r", "operations[0]", "execution.join"]),
        ({"grants": [rule(operations=["*"])]}, ["grant r", "'*'", "nearest"]),
        ({"grants": [rule(subject="agents")]}, ["grant r: subject='agents'", "nearest legal value: agent"]),
        ({"grants": [rule(subject="layer:root")]}, ["grant r: subject", "layer:root"]),
        ({"grants": [rule(resources=["*/jobs/x"])]}, ["grant r: resources[0]='*/jobs/x'", "task:owned"]),
        ({"grants": [rule(resources=["team-b/jobs/*"])]}, ["grant r: resources[0]", "no selector"]),
        ({"denies": [rule(resources=["*"])]}, ["deny r: resources[0]='*'"]),
        ({"grants": [rule(resources=["audit:records"])]}, ["execution.join", "does not work on audit:records"]),
        ({"grants": [rule(resources=["param-store:assigned"])]}, ["does not work on param-store", "task:owned"]),
        ({"grants": [rule(subject="layer:governance", operations=["execution.stop"])]},
         ["grant r: operations[0]='execution.stop'", "governance only reads", "governance.query"]),
        ({"grants": [rule(subject="rank", operations=["interface.exchange"])]},
         ["grant r: subject='rank'", "front door", "agent"]),
        ({"grants": [rule(operations=["resource.descriptors"])]}, ["public"]),
        ({"grants": [rule(maxTTL=239)]}, ["grant r: maxTTL=239", "lease for execution.join", "240"]),
        ({"grants": [rule(maxTTL=301)]}, ["grant r: maxTTL=301", "300"]),
        ({"grants": [rule(operations=["state.commit_checkpoint"], maxTTL=9)]}, ["grant r: maxTTL=9", "10"]),
        ({"grants": [rule(maxTTL="300")]}, ["grant r: maxTTL='300'"]),
        ({"grants": [rule(oneShot=True)]}, ["grant r: oneShot=True", "lease", "False"]),
        ({"grants": [rule(subject="rank", operations=["state.save"], oneShot=True)]}, ["grant r: oneShot", "control"]),
        ({"grants": [rule(oneshot=True)]}, ["grant r: field='oneshot'", "oneShot"]),
        ({"grants": [rule(max_ttl=300)]}, ["grant r: field='max_ttl'", "maxTTL"]),
        ({"denies": [rule(maxTTL=300)]}, ["deny r: field='maxTTL'"]),
        ({"grants": [rule(operations=[])]}, ["grant r: operations"]),
        ({"grants": [rule(operations="execution.join")]}, ["grant r: operations='execution.join'"]),
        ({"grants": [rule(id="R 1")]}, ["grant R 1: id='R 1'"]),
        ({"grants": [{"id": "r"}]}, ["grant r: subject", "required"]),
        ({"grants": ["r"]}, ["grants[0]"]),
        ({"grants": [rule()], "denies": [rule()]}, ["deny r: id='r'", "another rule", "r-2"]),
        ({"extends": "built-in", "grants": [rule(id="rank-links")]}, ["rank-links", "another rule"]),
        ({"extends": "built_in"}, ["extends='built_in'"]),
        ({"grant": []}, ["field='grant'", "grants"]),
        ({"grants": None}, ["document: grants"]),
        ({}, ["not a policy"]),
        ([], ["not a policy"]),
        ("x", ["not a policy"]),
    ],
)  # fmt: skip
def test_a_fault_refuses_the_document_and_is_named(document: Any, says: list[str]) -> None:
    with pytest.raises(e.InvalidInputError) as caught:
        compile_policy(parse_document(document), 2, DIGEST)
    assert [part for part in says if part not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_its_name(case: str) -> None:
    text, says = BROKEN[case]
    with pytest.raises(e.InvalidInputError) as caught:
        read(text)
    assert str(caught.value).startswith("policy.yaml: ")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400
