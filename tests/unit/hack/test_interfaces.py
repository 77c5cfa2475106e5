"""The check of interfaces: each kind of break is found where it is, and what breaks nobody is let through."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hack.interfaces import __main__ as command
from hack.interfaces import proposals, rules, snapshot

from kuangchao_contracts.audit import AuditPage
from kuangchao_contracts.base import Contract
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.run import HeartbeatReply
from kuangchao_operator.layers.governance import upstream
from kuangchao_worker.agent import client

Change = Callable[[dict[str, Any]], Any]
NOW = snapshot.present("9.9.9")
LONG = {"type": "string", "maxLength": 9_999}


def op(name: str, **facts: Any) -> Change:
    return lambda new: new["operations"][name].update(facts)


def drop(part: str, name: str) -> Change:
    return lambda new: new[part].pop(name)


def member(model: str, name: str, **keywords: Any) -> Change:
    """Change keywords of a member; `...` takes one away."""

    def change(new: dict[str, Any]) -> None:
        found = new["models"][model]["properties"].setdefault(name, {})
        found.update(keywords)
        for key in [key for key, value in found.items() if value is ...]:
            del found[key]

    return change


def without(model: str, name: str) -> Change:
    return lambda new: new["models"][model]["properties"].pop(name)


def required(model: str, name: str, needed: bool = True) -> Change:
    def change(new: dict[str, Any]) -> None:
        names = set(new["models"][model].get("required", ()))
        new["models"][model]["required"] = sorted(names | {name} if needed else names - {name})

    return change


def values(model: str, change: Callable[[list[str]], list[str]]) -> Change:
    return lambda new: new["models"][model].update(enum=change(new["models"][model]["enum"]))


def spec(kind: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda new: change(new["kinds"][kind]["schema"]["properties"]["spec"])


def kind(name: str, **facts: Any) -> Change:
    return lambda new: new["kinds"][name].update(facts)


def rule(text: str) -> Callable[[dict[str, Any]], Any]:
    return lambda schema: schema.setdefault("x-kubernetes-validations", []).append({"rule": text})


def both(*changes: Change) -> Change:
    return lambda new: [change(new) for change in changes]


def added(model: str, name: str, **keywords: Any) -> Change:
    return member(model, name, **{"type": "string", "default": "", **keywords})


# path that must be named -> what was done to the interface
BREAKS: dict[str, tuple[str, Change]] = {
    "operation removed": ("state.snapshot", drop("operations", "state.snapshot")),
    "audit class weakened": ("execution.stop.audit", op("execution.stop", audit="step")),
    "public made to need a token": ("resource.descriptors.audit", op("resource.descriptors", audit="read")),
    "one-shot dropped": ("execution.launch.oneShot", op("execution.launch", oneShot=False)),
    "one-shot demanded": ("execution.join.oneShot", op("execution.join", oneShot=True)),
    "older attempts let in": ("execution.join.staleOk", op("execution.join", staleOk=True)),
    "older attempts shut out": ("interface.feed.staleOk", op("interface.feed", staleOk=False)),
    "step call made a coroutine": ("state.submit_gradients.sync", op("state.submit_gradients", sync=False)),
    "works on something else": ("execution.join.kind", op("execution.join", kind="pools")),
    "request: required member added": (
        "execution.launch.request.why",
        both(member("LaunchRequest", "why", type="string"), required("LaunchRequest", "why")),
    ),
    "request: member became required": ("execution.stop.request.force", required("StopRequest", "force")),
    "request: member removed": ("execution.stop.request.drain", without("StopRequest", "drain")),
    "request: member of a member removed": (
        "execution.heartbeat.request.join.storePort",
        without("JoinRequest", "storePort"),
    ),
    "request: value removed": (
        "execution.heartbeat.request.ranks[].state",
        values("RankState", lambda names: names[:-1]),
    ),
    "request: text shortened": ("execution.stop.request.reason", member("StopRequest", "reason", maxLength=255)),
    "request: least number raised": ("execution.launch.request.attempt", member("LaunchRequest", "attempt", minimum=2)),
    "request: limit where none was": (
        "execution.stop.request.incarnation",
        member("StopRequest", "incarnation", maximum=9),
    ),
    "request: other pattern": ("execution.launch.request.planHash", member("LaunchRequest", "planHash", pattern="^x$")),
    "request: other type": ("execution.stop.request.force", member("StopRequest", "force", type="integer")),
    "request: null no longer taken": (
        "governance.query.request.subject",
        member("AuditQuery", "subject", anyOf=..., type="string", maxLength=256),
    ),
    "reply: required member removed": (
        "execution.heartbeat.response.directive",
        both(without("HeartbeatReply", "directive"), required("HeartbeatReply", "directive", needed=False)),
    ),
    "reply: member may be missing": (
        "execution.heartbeat.response.attempt",
        required("HeartbeatReply", "attempt", needed=False),
    ),
    "reply: value added": (
        "execution.heartbeat.response.directive",
        values("Directive", lambda names: [*names, "Dance"]),
    ),
    "reply: text lengthened": (
        "execution.join.response.waitingFor",
        member("JoinReply", "waitingFor", maxLength=2_048),
    ),
    "reply in the same process: required member removed": (
        "state.snapshot.response.step",
        both(without("SnapshotView", "step"), required("SnapshotView", "step", needed=False)),
    ),
    "token: claim added": ("Claims.colour", added("Claims", "colour")),
    "token: claim removed": ("Claims.puid", without("Claims", "puid")),
    "keys: member added": ("Jwks.keys[].colour", added("PublicKey", "colour")),
    "trail: member removed": ("StoredRecord.record.detail", without("AuditRecord", "detail")),
    "document removed": ("TokenBundle", both(drop("documents", "TokenBundle"), drop("models", "TokenBundle"))),
    "kind under another version": ("ResourcePool.apiVersion", kind("ResourcePool", apiVersion="kuangchao.io/v2")),
    "kind in namespaces": ("ResourcePool.namespaced", kind("ResourcePool", namespaced=True)),
    "kind by another name": ("ResourcePool.plural", kind("ResourcePool", plural="pools")),
    "kind removed": ("ResourcePool", drop("kinds", "ResourcePool")),
    "kind: member removed": (
        "TrainingJob.spec.priority",
        spec("TrainingJob", lambda schema: schema["properties"].pop("priority")),
    ),
    "kind: rule added": ("TrainingJob.spec", spec("TrainingJob", rule("self.pool != 'a'"))),
    "kind: rule about an old member of a member": (
        "TrainingJob.spec",
        spec("TrainingJob", rule("!has(self.devices.min) || self.devices.min > 1")),
    ),
}
COMPATIBLE: dict[str, Change] = {
    "operation added": lambda new: new["operations"].update({"state.sing": new["operations"]["state.save"]}),
    "audit class raised": op("governance.query", audit="control"),
    "request: optional member added": added("LaunchRequest", "why"),
    "request: value added": values("RankState", lambda names: [*names, "Singing"]),
    "request: text lengthened": member("StopRequest", "reason", maxLength=9_999),
    "request: null taken too": member(
        "StopRequest", "reason", type=..., maxLength=..., anyOf=[LONG, {"type": "null"}]
    ),
    "request: default changed": member("StopRequest", "drain", default=True),
    "reply: member added": added("HeartbeatReply", "song"),
    "reply: value never sent again": values("Directive", lambda names: names[:-1]),
    "reply: member is always there": required("CommitReply", "prune"),
    "reply in the same process: text lengthened": member("Ack", "detail", maxLength=2_048),
    "kind: rule about a change": spec("TrainingJob", rule("oldSelf.suspend || self.priority == oldSelf.priority")),
    "token: claim that is left out while None": added("Claims", "colour", default=None),
    "kind: optional member added": spec(
        "TrainingJob", lambda schema: schema["properties"].update(song={"type": "string"})
    ),
    "kind: rule about a new member": spec(
        "TrainingJob",
        lambda schema: (
            schema["properties"].update(song={"type": "string"}),
            rule("!has(self.song) || self.song != ''")(schema),
        ),
    ),
    "kind: rule about a new member of a member": spec(
        "TrainingJob",
        lambda schema: (
            schema["properties"]["devices"]["properties"].update(song={"type": "string"}),
            rule("!has(self.devices.song) || self.devices.song != ''")(schema),
        ),
    ),
}  # fmt: skip


def since(change: Change) -> list[rules.Change]:
    new = copy.deepcopy(NOW)
    change(new)
    return rules.compare(NOW, new)


@pytest.mark.parametrize(("path", "change"), BREAKS.values(), ids=BREAKS)
def test_a_break_is_found_where_it_is(path: str, change: Change) -> None:
    assert path in {found.path for found in since(change) if found.breaking}


@pytest.mark.parametrize("change", COMPATIBLE.values(), ids=COMPATIBLE)
def test_what_breaks_nobody_is_listed_and_passes(change: Change) -> None:
    changes = since(change)
    assert changes
    assert [str(found) for found in changes if found.breaking] == []


def test_nothing_changed_is_no_change() -> None:
    assert rules.compare(NOW, copy.deepcopy(NOW)) == []


def test_every_operation_and_every_model_that_travels_is_in_it() -> None:
    assert NOW["operations"].keys() == OPERATIONS.keys()
    assert NOW["kinds"].keys() == {"TrainingJob", "ResourcePool", "ResourceDescriptor", "ParallelPlan"}
    assert NOW["documents"].keys() >= {"Claims", "TokenBundle", "Jwks", "MintBatch", "StoredRecord", "CallEnvelope"}


def test_what_is_called_in_the_same_process_is_what_only_its_layers_may_call() -> None:
    """Agents, governance and the command line are processes of their own."""
    inside = {*(layer.subject for layer in Layer), "rank"} - {Layer.GOVERNANCE.subject, Layer.INTERFACE.subject}
    holders = {op: {who for who, rights in BUILT_IN.rights.items() if op in rights} for op in OPERATIONS}
    assert {op for op, who in holders.items() if who and who <= inside} == rules.SAME_PROCESS


def test_the_text_of_a_snapshot_is_the_same_for_the_same_code_and_has_no_prose() -> None:
    text = snapshot.text(NOW)
    assert text == snapshot.text(snapshot.present("9.9.9"))
    assert json.loads(text) == NOW
    assert '"description":' not in text.replace('"description": {', "")


class Reply(Contract):
    """Two levels, as an older caller knows them."""

    answer: HeartbeatReply


def test_replies_are_read_as_the_rules_suppose() -> None:
    """An older caller ignores what it does not know, at any depth, and nothing else."""
    body = b'{"answer": {"attempt": 1, "directive": "Stop", "song": "la"}, "more": 1}'
    assert Reply.from_reply(body).answer.attempt == 1
    with pytest.raises(ValueError, match="directive"):
        Reply.from_reply(b'{"answer": {"attempt": 1, "directive": "Dance"}}')


MORE = b'{"attempt": 1, "directive": "Stop", "song": "la"}'
PAGE = {"records": [], "droppedReads": 0, "song": "la"}
READERS: dict[str, Callable[[], Contract]] = {
    "agent": lambda: client._parse("execution.heartbeat", 200, MORE, HeartbeatReply),
    "governance": lambda: upstream._reply(200, PAGE, AuditPage),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_replies_of_another_process_reads_them_so(read: Callable[[], Contract]) -> None:
    assert isinstance(read(), HeartbeatReply | AuditPage)


# ---- proposals

FRONT = "# 0009: drain\n\nStatus: {status}\nBreaks: {breaks}\n{layer}\n## Goals\n\nBreaks: everything\n"
LAYER = "Compatibility: kuangchao_contracts.wire:to_error\n"


def proposal(status: str = "accepted", breaks: str = "execution.stop", layer: str = LAYER) -> proposals.Proposal:
    return proposals.parse("0009-drain.md", FRONT.format(status=status, breaks=breaks, layer=layer))


@pytest.mark.parametrize(
    ("found", "objection"),
    [
        (proposal(), None),
        (proposal("implemented", "execution.stop.request.drain"), None),
        (proposal("draft"), "Status: draft"),
        (proposal(layer=""), "no line Compatibility"),
        (proposal(layer="Compatibility: kuangchao_contracts.wire:nothing\n"), "cannot be imported|can be imported"),
        (proposal(layer="Compatibility: no.such.module:nothing\n"), "can be imported"),
        (proposal(breaks="execution.sto"), "no proposal says"),
        (proposal(breaks="execution.stop.request.drainage"), "no proposal says"),
        (proposal(breaks="everything"), "no proposal says"),
    ],
)
def test_a_proposal_allows_what_it_names_once_it_is_settled_and_has_a_layer(
    found: proposals.Proposal, objection: str | None
) -> None:
    said = proposals.objection("execution.stop.request.drain", [found])
    if objection is None:
        assert said is None
    else:
        assert any(words in (said or "") for words in objection.split("|"))


# ---- the command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "proposals").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "9.9.9"\n')
    return tmp_path


def released(root: Path, change: Change, version: str = "9.8.10") -> None:
    """A release whose interface was the present one with this change taken back."""
    old = copy.deepcopy(NOW)
    change(old)
    old["version"] = version
    (root / "docs" / "interfaces").mkdir(exist_ok=True)
    (root / "docs" / "interfaces" / f"{version}.json").write_text(snapshot.text(old))


def run(root: Path, name: str = "check") -> int:
    return command.main([name, "--root", str(root)])


def test_check_fails_on_a_break_until_a_proposal_allows_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    released(root, added("StopRequest", "song"))
    assert run(root) == 1
    assert "BREAKS      execution.stop.request.song" in capsys.readouterr().out
    text = FRONT.format(status="accepted", breaks="execution.stop.request.song", layer=LAYER)
    (root / "docs" / "proposals" / "0009-drain.md").write_text(text)
    assert run(root) == 0
    assert "allowed     execution.stop.request.song" in capsys.readouterr().out


def test_check_compares_with_the_newest_release(root: Path) -> None:
    released(root, added("StopRequest", "song"), "9.8.9")
    assert run(root) == 1
    released(root, lambda old: None, "9.8.10")
    assert run(root) == 0


def test_release_writes_once_and_never_anew(root: Path) -> None:
    assert run(root, "release") == 0
    path = root / "docs" / "interfaces" / "9.9.9.json"
    assert path.read_text() == snapshot.text(NOW)
    assert run(root, "release") == 0
    released(root, without("AuditQuery", "job"), "9.9.9")
    before = path.read_text()
    assert run(root, "release") == 1
    assert path.read_text() == before


def test_release_refuses_while_something_breaks(root: Path) -> None:
    released(root, added("StopRequest", "song"))
    assert run(root, "release") == 1
    assert not (root / "docs" / "interfaces" / "9.9.9.json").exists()


def test_the_released_interfaces_hold_for_this_code() -> None:
    assert command.main(["check"]) == 0
