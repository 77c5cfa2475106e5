"""A plug-in is a layer like any other: its own token and no other opens it, and its token opens nothing else."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kuangchao_compression.plugin import compression
from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import Grant
from kuangchao_contracts.layers import Layer, plugin_audience
from kuangchao_contracts.minting import MintRequest
from kuangchao_contracts.plugins import PluginChoice
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports.plugin import MemoryAt, OpenStep
from kuangchao_contracts.ports.state import SnapshotRequest
from kuangchao_operator.gate.minting import JobRef, PodRef, worker_requests
from kuangchao_operator.signing.mint import check_grant
from kuangchao_worker.layers.state.parameters import ParameterStore
from kuangchao_worker.layers.state.plugged import PluggedStore
from kuangchao_worker.plugins import Seat, find
from kuangchao_worker.plugins.service import PluginService
from kuangchao_worker.rank.plugging import plugged
from kuangchao_worker.tasks.mlp import mlp
from tests.boundary.modules import ROOT, load
from tests.unit.plugins.parts import OPS, Rank
from tests.unit.plugins.toys import TOY, halved
from tests.unit.worker.parts import assignment, make_state

NAME = "weight"
MAY_IMPORT = {"collections", "enum", "hashlib", "kuangchao_compression", "kuangchao_contracts", "kuangchao_worker"}
MAY_IMPORT |= {"math", "torch", "typing"}
MAY_NAME = {"torch.nn.functional", "kuangchao_worker.plugins"}
REQUESTS = {
    "plugin.open_step": OpenStep(step_id=1),
    "plugin.save": MemoryAt(step=0),
    "plugin.restore": MemoryAt(step=0),
}
AUDIENCES = [*(layer.audience for layer in Layer), plugin_audience("other"), plugin_audience("compressio")]


@pytest.fixture
def rank() -> Rank:
    made = Rank("compression", compression({"method": "int8"}))
    made.service.expect({NAME: 8})
    return made


@pytest.mark.parametrize("audience", AUDIENCES)
@pytest.mark.parametrize("op", OPS)
def test_tokens_of_others_are_refused_and_noted(rank: Rank, op: str, audience: str) -> None:
    """Genuine, and they grant the very operation: whom they are for is wrong."""
    with pytest.raises(e.InvalidAudienceError):
        rank.call(op, REQUESTS[op], rank.token(audience))
    (note,) = rank.log.take_notes()
    assert (note.op, note.reason, note.layer) == (op, "InvalidAudience", "plugin")


@pytest.mark.parametrize("op", ["state.snapshot", "plugin.open_step"])
def test_its_token_opens_nothing_else(rank: Rank, tmp_path: Path, op: str) -> None:
    rank.gate.register(make_state(mlp({}), tmp_path))
    other = Rank(TOY, halved({}))
    other.gate = other.gate if op.startswith("plugin") else rank.gate
    issuer = other.issuer if op.startswith("plugin") else rank.issuer
    stolen = issuer.mint("rank:team/job/pod-0", plugin_audience("compression"), [op], 1)
    request = OpenStep(step_id=1) if op.startswith("plugin") else SnapshotRequest()
    with pytest.raises(e.InvalidAudienceError):
        other.call(op, request, stolen)


def test_its_own_token_opens_it_and_every_call_is_in_the_chain(rank: Rank) -> None:
    for number, op in enumerate(OPS, 1):
        rank.call(op, REQUESTS[op].replace(step=rank.service._step) if op == "plugin.save" else REQUESTS[op])
        assert rank.log.count == number
    assert rank.log.take_notes() == ()


def test_calls_are_step_calls(rank: Rank) -> None:
    assert {rank.gate.operation(op).audit.value for op in OPS} == {"step"}


def test_values_pass_only_after_a_call_through_the_gate(rank: Rank) -> None:
    service, gradient = rank.service, torch.ones(8)
    with pytest.raises(e.StepOrderError, match="no step is open"):
        service.encode([NAME], [gradient])
    for reach in (service.memory, lambda: service.remember({})):
        with pytest.raises(e.StepOrderError, match="without a call"):
            reach()
    rank.call("plugin.open_step", OpenStep(step_id=1))
    service.encode([NAME], [gradient])
    with pytest.raises(e.StepOrderError, match="has been taken"):
        service.encode([NAME], [gradient])
    for wrong in (0, 1, 3):
        with pytest.raises(e.StepOrderError):
            rank.call("plugin.open_step", OpenStep(step_id=wrong))
    with pytest.raises(e.StepOrderError):
        rank.call("plugin.save", MemoryAt(step=0))
    rank.call("plugin.save", MemoryAt(step=1))
    assert service.memory().keys() == {NAME}
    with pytest.raises(e.StepOrderError):
        service.memory()


def test_a_codec_is_given_no_way_out() -> None:
    """Its package imports torch's arithmetic and the contract, nothing that sends, opens or updates."""
    for path in (ROOT / "plugins" / "compression" / "kuangchao_compression").glob("*.py"):
        imported = set(re.findall(r"^(?:from|import) (\S+)", path.read_text(), re.MULTILINE))
        assert {name.partition(".")[0] for name in imported} <= MAY_IMPORT, path
        assert {name for name in imported if name.startswith(("torch.", "kuangchao_worker"))} <= MAY_NAME, path


# ---- tokens that the operator asks for, without the plug-in's package


def test_a_pod_gets_leases_for_the_plugins_of_its_job_only() -> None:
    pod = PodRef("w-0", (0, 1))
    plain = worker_requests(JobRef("team-a", "digits", "uid-1"), 1, pod, BUILT_IN)
    named = worker_requests(JobRef("team-a", "digits", "uid-1", ("compression",)), 1, pod, BUILT_IN)
    assert named.keys() - plain.keys() == {"rank/kc:plugin:compression"}
    request = named["rank/kc:plugin:compression"]
    assert {grant.op for grant in request.grants} == set(OPS)
    for grant in request.grants:
        check_grant(request, grant.op, grant.res, BUILT_IN)


@pytest.mark.parametrize(("op", "audience"), [("state.save", "kc:plugin:compression"), ("plugin.save", "kc:state")])
def test_the_issuer_signs_no_operation_for_another_audience(op: str, audience: str) -> None:
    fields: dict[str, Any] = {"subject": "rank:team-a/digits/w-0", "namespace": "team-a", "lifetime_seconds": 300}
    grant = Grant(op=op, res="team-a/jobs/digits")
    request = MintRequest(audience=audience, grants=(grant,), job="digits", job_uid="u", pod="w-0", ranks="0", **fields)
    with pytest.raises(e.InvalidAudienceError):
        check_grant(request, op, grant.res, BUILT_IN)


# ---- found by entry point


def install(folder: Path, package: str, value: str) -> None:
    """As an installer leaves it: a package whose entry point for `TOY` is `value`."""
    installed = folder / f"{package}-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[kuangchao.plugins]\n{TOY} = {value}\n")


def test_a_second_plugin_needs_no_change_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made here and now: found, seated and put before the store like the first."""
    install(tmp_path, TOY, "tests.unit.plugins.toys:halved")
    monkeypatch.syspath_prepend(tmp_path)
    choice = PluginChoice(name=TOY)
    service = find.find(choice, Seat())
    assert isinstance(service, PluginService)
    assert service.audience == "kc:plugin:toy"
    task = mlp({})
    module = task.model()
    store = ParameterStore(module, task.optimizer(module.parameters()), None)
    assigned = assignment(tmp_path, plugins=(choice,))
    behind, plugin = plugged(store, assigned, lambda op, request: pytest.fail("nothing is called yet"))
    assert isinstance(behind, PluggedStore)
    assert plugin.plugin == TOY


def test_a_plugin_that_is_not_installed_is_named() -> None:
    with pytest.raises(e.InvalidInputError, match="plugins='absent': is not installed"):
        find.find(PluginChoice(name="absent"), Seat())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_package:make", "cannot be made: ModuleNotFoundError: No module named 'no_such_package'"),
        ("tests.unit.plugins.toys:make", "cannot be made: AttributeError: .*no attribute 'make'"),
        ("tests.unit.plugins.toys:raising", "cannot be made: KeyError: 'depth'"),
        ("tests.unit.plugins.toys:Other", "cannot be made: TypeError: .*abstract method.* encode"),
        ("tests.unit.plugins.toys:Unversioned", "Unversioned.version is None, no text that ranks could compare"),
        ("builtins:dict", "made dict, no Codec"),
    ],
)
def test_what_is_no_plugin_is_told_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    install(tmp_path, TOY, value)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(e.InvalidInputError, match=f"plugins='{TOY}': {said}"):
        find.find(PluginChoice(name=TOY), Seat())


def test_two_plugins_of_one_name_are_both_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them is meant nobody knows; the same one found twice is one."""
    for package in ("toy", "again"):
        install(tmp_path, package, "tests.unit.plugins.toys:halved")
    monkeypatch.syspath_prepend(tmp_path)
    assert find.find(PluginChoice(name=TOY), Seat()).plugin == TOY
    install(tmp_path, "other", "tests.unit.plugins.toys:raising")
    importlib.invalidate_caches()
    both = "several in this image: tests.unit.plugins.toys:halved, tests.unit.plugins.toys:raising"
    with pytest.raises(e.InvalidInputError, match=both):
        find.find(PluginChoice(name=TOY), Seat())


def test_core_names_no_plugin() -> None:
    sources = [path for folder in ("contracts", "operator", "worker") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    assert [path for path in sources if "kuangchao_compression" in path.read_text()] == []


def test_a_rank_without_plugin_loads_nothing_of_it() -> None:
    loaded = load(["kuangchao_worker.rank.wiring"], set())
    assert not [name for name in loaded if "plug" in name and not name.startswith("kuangchao_contracts.")]
