"""The pure and file parts of the local runner."""

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import TrainingJobStatus
from kuangchao_contracts.descriptor import Device, DeviceKind, HostCapacity, NodeDescriptor
from kuangchao_contracts.errors import ConflictError, InvalidInputError
from kuangchao_operator.layers.resource.decide import slots
from kuangchao_operator.local import volatile
from kuangchao_operator.local.facts import pool_facts
from kuangchao_operator.local.job import admit
from kuangchao_operator.local.launcher import agent_environment, grace_seconds
from kuangchao_operator.local.pool import pool_for
from kuangchao_operator.local.rundir import open_run, replace_file
from kuangchao_operator.local.store import LocalJobStore
from kuangchao_operator.local.volatile import PREFIX, Volatile

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def job(count: int = 2, **spec: object) -> TrainingJob:
    return TrainingJob.model_validate(
        {"metadata": {"name": "j"}, "spec": {"pool": "any", "task": "m:f", "devices": {"count": count}, **spec}}
    )


def machine(milli_cpu: int, gpus: int = 0) -> NodeDescriptor:
    devices = tuple(
        Device(index=n, uuid=f"GPU-{n}", kind=DeviceKind.GPU, model="H100", memory_bytes=2**36) for n in range(gpus)
    )
    host = HostCapacity(allocatable_milli_cpu=milli_cpu, allocatable_memory_bytes=2**34)
    return NodeDescriptor(node="localhost", generation=1, observed_at=NOW, host=host, devices=devices)


@pytest.mark.parametrize(
    ("milli_cpu", "count", "share", "notes"),
    [(4_000, 2, "1000m", 0), (2_000, 2, "1000m", 0), (2_000, 4, "500m", 1), (1_000, 3, "333m", 1)],
)
def test_the_pool_always_holds_the_job(milli_cpu: int, count: int, share: str, notes: int) -> None:
    pool = pool_for(job(count), machine(milli_cpu))
    assert pool.spec.cpu_per_device == share
    assert len(pool.notes) == notes
    assert slots(pool.spec, pool.descriptor).devices >= count
    facts = pool_facts(job(count), pool)
    assert facts.name == "any"
    assert facts.nodes[0].devices >= count


def test_more_devices_than_the_machine_can_be_divided_into() -> None:
    with pytest.raises(InvalidInputError, match=r"spec\.devices\.count=3000") as caught:
        pool_for(job(3_000), machine(2_000))
    assert caught.value.nearest == 2_000


@pytest.mark.parametrize(
    ("gpus", "wanted", "kind"),
    [(0, None, "cpu"), (8, None, "gpu"), (1, None, "cpu"), (8, "cpu", "cpu"), (0, "gpu", "gpu")],
)
def test_kind_of_devices(gpus: int, wanted: str | None, kind: str) -> None:
    made = job(devices={"count": 2, **({"type": wanted} if wanted else {})})
    assert pool_for(made, machine(4_000, gpus)).spec.device_type.value == kind


def test_admit_gives_identity_and_names_what_has_no_meaning_here() -> None:
    stored, notes = admit(job(priority="debug", suspend=True, podOverrides={"hostNetwork": False}), NOW)
    assert stored.metadata.uid
    assert stored.metadata.creation_timestamp == NOW
    assert (stored.metadata.namespace, stored.metadata.generation) == ("default", 1)
    assert stored.spec.suspend is False
    assert any("podOverrides" in note for note in notes)
    assert any("suspend" in note for note in notes)
    other, _ = admit(job(), NOW)
    assert other.metadata.uid != stored.metadata.uid


def test_generated_names_differ() -> None:
    unnamed = job().replace(metadata={"generateName": "try-"})
    names = {admit(unnamed, NOW)[0].metadata.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("try-") for name in names)


def test_runs_of_the_same_second_never_collide(tmp_path: Path) -> None:
    runs = [open_run(tmp_path, "j", NOW) for _ in range(3)]
    try:
        assert len({run.root for run in runs}) == len({run.volatile.path for run in runs}) == 3
        assert all(len(str(run.issuer_socket)) < 107 for run in runs)
        assert len(str(runs[0].short("j-abcdef-0-0") / "m1000.sock")) < 107
    finally:
        for run in runs:
            run.close()
    assert not any(run.volatile.path.exists() for run in runs)


def temporary(monkeypatch: pytest.MonkeyPatch, path: Path, room: int = 1_000) -> None:
    """Have a temporary directory, and by default no limit for the paths of sockets: pytest's are long."""
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setattr(volatile, "SOCKET_PATH_BYTES", room)


def test_a_directory_that_cannot_hold_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").write_text("a file")
    (held := tmp_path / "t").mkdir()
    temporary(monkeypatch, held)
    with pytest.raises(InvalidInputError, match="--workdir"):
        open_run(tmp_path, "j", NOW)
    assert not list(held.iterdir())


@pytest.mark.parametrize(
    ("name", "room", "why"), [("l" * 120, 107, "too long.*legal value: /tmp"), ("gone", 1_000, "No such file")]
)
def test_a_temporary_directory_that_cannot_hold_sockets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, room: int, why: str
) -> None:
    temporary(monkeypatch, tmp_path / name, room)
    with pytest.raises(InvalidInputError, match=f"TMPDIR=.*{why}"):
        open_run(tmp_path, "j", NOW)
    assert not list(tmp_path.iterdir()), "no run that never began"


def test_tokens_are_private_and_leave_with_the_run(tmp_path: Path) -> None:
    run = open_run(tmp_path, "j", NOW)
    token = run.token("p") / "bundle.json"
    replace_file(token, b"one")
    replace_file(token, b"two")
    assert token.read_bytes() == b"two"
    assert token.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in token.parent.iterdir()] == ["bundle.json"]
    run.close()
    assert not token.parent.exists()


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary(monkeypatch, tmp_path)
    killed, alive = Volatile.create(), Volatile.create()
    (killed.path / "keys").mkdir()
    (elsewhere := tmp_path / "kept").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    os.close(killed._lock)  # as the kernel does with those of a process that dies
    following = Volatile.create()
    assert sorted(path.name for path in tmp_path.glob(f"{PREFIX}*") if not path.is_symlink()) == sorted(
        [alive.path.name, following.path.name]
    )
    assert elsewhere.exists()
    for directory in (alive, following):
        directory.remove()


async def test_status_is_written_only_when_it_changes() -> None:
    stored, _ = admit(job(), NOW)
    seen: list[TrainingJob] = []
    store = LocalJobStore(stored, seen.append)
    meta = stored.metadata
    name = (meta.namespace or "", meta.name, meta.uid)
    await store.update_status(*name, lambda _: TrainingJobStatus(attempt=1))
    after = await store.update_status(*name, lambda _: TrainingJobStatus(attempt=1))
    assert len(seen) == 1
    assert after.metadata.resource_version == "2"
    assert (await store.get("default", "other")) is None
    with pytest.raises(ConflictError):
        await store.update_status("default", "j", "another uid", lambda _: TrainingJobStatus())


def test_environment_of_agents() -> None:
    made = job(template={"env": [{"name": "A", "value": "1"}], "terminationGracePeriodSeconds": 3})
    environment = agent_environment({"PATH": "/bin", "KUANGCHAO_GATE_URL": "http://elsewhere"}, made)
    assert environment == {"PATH": "/bin", "A": "1"}
    assert grace_seconds(made) == 3
    assert grace_seconds(job()) == 30
    assert grace_seconds(job(template={"terminationGracePeriodSeconds": 600})) == 60
