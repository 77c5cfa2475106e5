"""The keeper of revocations: refusing comes first and waits for nothing, the rest is tried until it is done."""

import logging
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts.errors import ConflictError, UnavailableError
from kuangchao_contracts.keys import Jwks
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS
from kuangchao_operator.gate.fence import JobFence
from kuangchao_operator.gate.revocations import KEPT_SECONDS
from kuangchao_operator.gate.trust import TrustLoop
from kuangchao_operator.kube.revocations import MAX_OWED, RECORDED_AT_ONCE, RevocationKeeper
from tests.unit.authority.kit import Clock, MemorySink

JTI, KID = "A" * 22, "k" * 43


class World:
    """A ConfigMap, an issuer and a keeper between them."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "revocations.json"
        self.clock, self.sink = Clock(), MemorySink()
        self.data: dict[str, str] | None = {}
        self.patches: list[dict[str, Any]] = []
        self.refusal: Exception | None = None
        self.issuer_away = False
        self.issuer_denied: tuple[str, ...] = ()
        self.published: list[Jwks] = []
        self.reissued, self.woken = 0, list[str]()
        self.start()

    def start(self) -> None:
        """An operator comes up."""
        anything: Any = self
        self.fence, self.trust = JobFence(), TrustLoop(anything, self._publish)
        self.keeper = RevocationKeeper(
            anything, "system", self.fence, self.trust, self.sink, self.clock.moment, "operator", self.mark,
            reissue=self._reissue, wake=self.woken.append,
        )  # fmt: skip

    # what the keeper asks of the API server

    async def get(self, path: str) -> dict[str, Any] | None:
        assert path == "/api/v1/namespaces/system/configmaps/kuangchao-revocations"
        if self.data is None:
            return None
        fields = {f"f:{key}": {} for key in self.data}
        entry = {"manager": "kubectl", "time": "T", "fieldsV1": {"f:data": fields}}
        metadata = {
            "name": "kuangchao-revocations", "namespace": "system", "resourceVersion": "7", "managedFields": [entry],
        }  # fmt: skip
        return {"metadata": metadata, "data": dict(self.data)}

    async def request(self, method: str, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert (method, path) == ("PATCH", "/api/v1/namespaces/system/configmaps/kuangchao-revocations")
        if self.refusal is not None:
            raise self.refusal
        self.patches.append(body)
        assert self.data is not None
        for key, value in body["data"].items():
            if value is None:
                self.data.pop(key)
            else:
                self.data[key] = value
        return {}

    # what it asks of the issuer

    async def jwks(self) -> Jwks:
        return Jwks(keys=(), denied=self.issuer_denied)

    async def ca(self) -> str:
        return "ca"

    async def audit_keys(self) -> str:
        return "audit keys"

    async def deny(self, kid: str) -> Jwks:
        if self.issuer_away:
            raise UnavailableError("issuer")
        self.issuer_denied = (*self.issuer_denied, kid)
        return await self.jwks()

    async def _publish(self, trust: Any) -> None:
        self.published.append(trust.jwks)

    async def _reissue(self) -> None:
        self.reissued += 1

    def records(self) -> list[tuple[str, str]]:
        return [(r.op, r.detail) for r in self.sink.records]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_token_is_refused_recorded_once_and_everything_is_minted_anew(world: World) -> None:
    world.data = {f"jti.{JTI}": ""}
    for _ in range(3):
        await world.keeper.look()
    assert world.fence.revoked(JTI)
    assert world.records() == [("token.revoke", f"jti.{JTI} by kubectl at T")]
    record = world.sink.records[0]
    assert (record.stage, record.jti, record.decision) == ("system", JTI, "allow")
    assert world.reissued == 1


async def test_an_entry_gets_its_end_in_the_version_that_was_read_and_is_removed_after_it(world: World) -> None:
    world.data = {f"jti.{JTI}": ""}
    await world.keeper.look()
    assert world.patches == [
        {"metadata": {"resourceVersion": "7"}, "data": {f"jti.{JTI}": str(int(world.clock.now) + 300)}}
    ]
    world.clock.now += MAX_LEASE_SECONDS + KEPT_SECONDS + 1
    await world.keeper.look()
    assert world.data == {}
    assert not world.fence.revoked(JTI)
    assert len(world.records()) == 1, "that it has expired is no news"


async def test_somebody_who_writes_at_the_same_moment_is_not_overwritten(world: World) -> None:
    world.data, world.refusal = {f"jti.{JTI}": ""}, ConflictError("changed")
    await world.keeper.look()
    assert world.fence.revoked(JTI)
    assert world.data == {f"jti.{JTI}": ""}


async def test_a_job_is_woken_when_it_is_taken_back_and_when_it_is_given_back(world: World) -> None:
    world.data = {"job.uid-1": ""}
    await world.keeper.look()
    assert (world.fence.job_revoked("uid-1"), world.woken) == (True, ["uid-1"])
    world.data = {}
    await world.keeper.look()
    assert (world.fence.job_revoked("uid-1"), world.woken) == (False, ["uid-1", "uid-1"])
    assert [op for op, _ in world.records()] == ["token.revoke", "token.restore"]
    assert world.reissued == 0, "others' tokens are as good as before"


async def test_a_key_is_denied_published_and_recorded_once(world: World) -> None:
    world.data = {f"kid.{KID}": ""}
    for _ in range(3):
        await world.keeper.look()
    assert world.issuer_denied == (KID,)
    assert world.published[-1].denied == (KID,)
    assert world.records() == [("keys.deny", f"kid.{KID} by kubectl at T")]
    assert world.reissued == 1
    world.data = {}
    await world.keeper.look()
    assert world.trust.jwks().denied == (KID,), "that cannot be undone"
    assert len(world.records()) == 1


async def test_a_key_is_refused_here_while_the_issuer_is_away(world: World) -> None:
    world.data, world.issuer_away = {f"kid.{KID}": "", "job.uid-1": ""}, True
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await world.keeper.look()
    assert world.trust.jwks().denied == (KID,)
    await world.trust.refresh()
    assert world.trust.jwks().denied == (KID,), "an issuer that was not told yet does not bring it back"
    assert [op for op, _ in world.records()] == ["token.revoke"]
    world.issuer_away = False
    await world.keeper.look()
    assert world.issuer_denied == (KID,)
    assert [op for op, _ in world.records()] == ["token.revoke", "keys.deny"]


async def test_a_key_that_was_denied_before_we_came_up_is_no_news(world: World) -> None:
    world.data, world.issuer_denied = {f"kid.{KID}": ""}, (KID,)
    await world.trust.refresh()
    await world.keeper.look()
    assert (world.records(), world.reissued, world.issuer_denied) == ([], 0, (KID,))


async def test_a_record_that_cannot_be_made_is_owed_and_holds_nothing_up(world: World) -> None:
    world.data, world.sink.broken = {f"jti.{JTI}": "", f"kid.{KID}": ""}, True
    await world.keeper.look()
    assert world.fence.revoked(JTI)
    assert world.issuer_denied == (KID,)
    world.sink.broken = False
    await world.keeper.look()
    assert [op for op, _ in world.records()] == ["token.revoke", "keys.deny"]


async def test_without_the_list_what_it_said_last_stays(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.data = {f"jti.{JTI}": ""}
    await world.keeper.look()
    world.data = None
    for _ in range(3):
        await world.keeper.look()
    assert world.fence.revoked(JTI)
    assert [r.message for r in caplog.records].count(
        "ConfigMap kuangchao-revocations is missing; what it said last stays in force"
    ) == 1  # fmt: skip


async def test_nonsense_is_said_once_and_ignored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world.data = {"jti.short": "", "job.uid-1": ""}
    for _ in range(3):
        await world.keeper.look()
    assert world.fence.job_revoked("uid-1")
    assert len([r for r in caplog.records if "jti.short is ignored" in r.message]) == 1
    assert world.records() == [("token.revoke", "job.uid-1 by kubectl at T")]


async def test_thousands_are_refused_at_once_and_recorded_bit_by_bit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What is taken back next must not wait for them."""
    jobs = {f"job.uid-{number}": "" for number in range(MAX_OWED + 1)}
    world.data = jobs
    await world.keeper.look()
    assert all(world.fence.job_revoked(key.removeprefix("job.")) for key in jobs)
    assert len(world.records()) == RECORDED_AT_ONCE
    assert "wait for a record" in caplog.text
    for _ in range(MAX_OWED // RECORDED_AT_ONCE):
        await world.keeper.look()
    assert len(world.records()) == MAX_OWED
    assert world.mark.exists()


# ---- over restarts


async def test_what_is_recorded_stays_in_force_over_a_restart_and_is_no_news(world: World) -> None:
    world.data = {f"jti.{JTI}": "", "job.uid-1": "", "job.uid-2": ""}
    await world.keeper.look()
    world.data = None
    world.start()
    assert (world.fence.revoked(JTI), world.fence.job_revoked("uid-1")) == (True, True), "before anything is read"
    await world.keeper.look()
    assert world.fence.job_revoked("uid-1"), "whoever deletes the list gives nothing back"
    world.data = {"job.uid-2": ""}
    world.start()
    await world.keeper.look()
    assert (world.fence.job_revoked("uid-1"), world.fence.job_revoked("uid-2")) == (False, True)
    assert [op for op, _ in world.records()] == ["token.revoke"] * 3 + ["token.restore"] * 2


async def test_a_volume_that_could_not_be_read_at_first_gives_nothing_back(world: World) -> None:
    """The operator waits until it can open its record, and this lies beside it."""
    world.data = {"job.uid-1": ""}
    await world.keeper.look()
    aside = world.mark.rename(world.mark.with_name("out of reach"))
    world.data = None
    world.start()
    assert not world.fence.job_revoked("uid-1")
    aside.rename(world.mark)
    world.keeper.recall()
    await world.keeper.look()
    assert world.fence.job_revoked("uid-1")
    assert len(world.records()) == 1, "which is no news"


async def test_what_could_not_be_recorded_is_recorded_after_a_restart(world: World) -> None:
    world.data, world.sink.broken = {"job.uid-1": ""}, True
    await world.keeper.look()
    world.sink.broken = False
    for _ in range(2):
        world.start()
        await world.keeper.look()
    assert world.records() == [("token.revoke", "job.uid-1 by kubectl at T")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job.uid-1": 7}'])
async def test_a_mark_that_cannot_be_read_costs_a_record(world: World, content: str) -> None:
    world.mark.write_text(content)
    world.data = {"job.uid-1": ""}
    world.start()
    await world.keeper.look()
    assert world.fence.job_revoked("uid-1")
    assert [op for op, _ in world.records()] == ["token.revoke"]


async def test_a_mark_that_cannot_be_written_is_said_and_holds_nothing_up(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.mark = tmp_path / "no" / "such" / "folder"
    world.data = {"job.uid-1": ""}
    world.start()
    for _ in range(3):
        await world.keeper.look()
    assert world.fence.job_revoked("uid-1")
    assert [r.message for r in caplog.records].count("folder cannot be written: No such file or directory") == 1
