"""The issuer's policy: a broken file changes no right, generations outlive restarts, tokens follow at once."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import Claims, Grant
from kuangchao_contracts.keys import KeySet
from kuangchao_contracts.minting import MintRequest
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.signing.ca import CertificateAuthority
from kuangchao_operator.signing.keystore import KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PUBLISH_SECONDS, PolicyKeeper
from kuangchao_operator.signing.server import IssuerServer
from kuangchao_operator.signing.witness import Witness
from tests.boundary.modules import ROOT, ROOTS
from tests.unit.authority.kit import ISSUER, MINTABLE, RESOURCE, Clock
from tests.unit.authority.policies import BROKEN, NARROW, OBSERVER, STRICT

AGENT: dict[str, Any] = MINTABLE | {
    "audience": "kc:execution",
    "grants": (Grant(op="execution.join", res=RESOURCE), Grant(op="execution.heartbeat", res=RESOURCE)),
}
DOOR = AGENT | {"audience": "kc:interface", "grants": (Grant(op="state.commit_checkpoint", res=RESOURCE),)}
COMMIT = DOOR | {"audience": "kc:state", "one_shot": True, "lifetime_seconds": 60}
PLAN: dict[str, Any] = {
    "subject": "layer:execution",
    "audience": "kc:strategy",
    "grants": (Grant(op="strategy.plan", res=RESOURCE),),
    "namespace": "team-a",
    "job": "digits",
    "lifetime_seconds": 60,
}


class World:
    """An issuer with a mounted policy file, which restarts as often as it is told to."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.folder, self.file = Clock(), folder, folder / "policy.yaml"
        self.keys = KeyStore(folder / "keys", self.clock)

    def start(self, path: Path | None = None) -> PolicyKeeper:
        self.keeper = PolicyKeeper(self.folder / "kept", path or self.file, self.clock)
        self.minter = Minter(self.keys, ISSUER, self.clock, self.keeper)
        return self.keeper

    def put(self, text: str | bytes) -> None:
        self.file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def mint(self, **request: Any) -> Claims:
        token = self.minter.mint(MintRequest(**request)).token
        return TokenVerifier(KeySet(self.keys.jwks()), ISSUER, self.clock).genuine(token)[0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_no_file_is_the_built_in_policy(world: World) -> None:
    keeper = PolicyKeeper(world.folder / "kept", None, world.clock)
    assert keeper.reply().policy == BUILT_IN
    assert keeper.stamp() == 1
    assert not keeper.tick()


def test_the_generation_rises_with_the_content_only_and_outlives_restarts(world: World) -> None:
    world.put(NARROW)
    keeper = world.start()
    assert keeper.current.generation == 2  # 1 is the built-in policy's for ever
    assert not keeper.tick()
    assert world.start().current == keeper.current
    world.put(STRICT)
    keeper = world.start()
    assert keeper.current.generation == 3
    world.put(NARROW)
    assert keeper.tick()
    assert (keeper.current.generation, world.start().current.generation) == (4, 4)
    assert PolicyKeeper(world.folder / "kept", None, world.clock).current.replace(generation=1) == BUILT_IN


def test_a_reload_changes_only_what_changed(world: World) -> None:
    world.put("extends: built-in")
    keeper = world.start()
    before = keeper.current
    world.put(NARROW)
    assert keeper.tick()
    held = {(who, op) for who, ops in before.rights.items() for op in ops}
    left = {(who, op) for who, ops in keeper.current.rights.items() for op in ops}
    assert held - left == {("agent", "execution.join")}
    assert all(keeper.current.rights[who][op] == before.rights[who][op] for who, op in left)


@pytest.mark.parametrize("case", [*BROKEN, "observer", "vanished"])
def test_a_broken_file_keeps_the_old_policy_and_says_so(world: World, case: str) -> None:
    world.put(NARROW)
    old = world.start().current
    if case == "vanished":
        world.file.unlink()
    else:
        world.put(OBSERVER if case == "observer" else BROKEN[case][0])
    assert not world.keeper.tick()
    reply = world.keeper.reply()
    assert (reply.policy, world.keeper.current) == (old, old)
    assert str(world.file) in reply.problem
    restarted = world.start()  # beside the broken file, with the last good one on its volume
    assert (restarted.current, restarted.reply().problem) == (old, reply.problem)
    world.put(STRICT)
    assert restarted.tick()
    assert (restarted.reply().problem, restarted.current.generation) == ("", old.generation + 1)


def test_the_old_file_again_is_no_news(world: World) -> None:
    world.put(NARROW)
    old = world.start().current
    world.put("grants: [")
    world.keeper.tick()
    world.put(NARROW)
    assert not world.keeper.tick()
    assert (world.keeper.current, world.keeper.reply().problem) == (old, "")


@pytest.mark.parametrize("case", [*BROKEN, "missing"])
def test_a_first_start_with_a_broken_file_is_refused(world: World, case: str) -> None:
    if case != "missing":
        world.put(BROKEN[case][0])
    with pytest.raises(e.InvalidInputError, match="first start"):
        world.start()
    with pytest.raises(e.InvalidInputError, match="first start"):
        world.start()


def test_a_volume_that_lost_its_memory_gives_no_generation_away_again(world: World) -> None:
    world.put(NARROW)
    world.start()
    (world.folder / "kept" / "policy.json").write_text("{")
    with pytest.raises(e.StorageError):
        world.start()


def test_a_volume_that_takes_nothing_keeps_the_old_policy(world: World) -> None:
    world.put(NARROW)
    old = world.start().current
    world.put(STRICT)
    (world.folder / "kept" / "policy.json.tmp").mkdir()  # where the new one is prepared
    assert not world.keeper.tick()
    assert (world.keeper.current, bool(world.keeper.reply().problem)) == (old, True)
    (world.folder / "kept" / "policy.json.tmp").rmdir()
    assert world.keeper.tick()
    assert world.keeper.reply().problem == ""


def test_what_was_taken_away_is_not_minted_again(world: World) -> None:
    world.put("extends: built-in")
    world.start()
    world.mint(**AGENT)
    world.put(NARROW)
    world.keeper.tick()
    with pytest.raises(e.PermissionDeniedError):
        world.mint(**AGENT)
    world.mint(**(AGENT | {"grants": AGENT["grants"][1:]}))


def test_lives_are_cut_and_one_shots_demanded(world: World) -> None:
    world.put(STRICT)
    world.start()
    for request, seconds in ((AGENT, 240), (DOOR, 300), (COMMIT, 15)):
        claims = world.mint(**request)
        assert claims.exp - claims.iat == seconds
    with pytest.raises(e.OneShotRequiredError):
        world.mint(**PLAN)
    assert world.mint(**(PLAN | {"one_shot": True})).one


def test_only_what_the_selectors_stand_for_is_minted(world: World) -> None:
    world.put("extends: built-in")
    world.start()
    with pytest.raises(e.PermissionDeniedError):
        world.mint(**(AGENT | {"grants": (Grant(op="execution.join", res=f"{RESOURCE}/part"),)}))


def test_a_generation_is_known_everywhere_before_it_stands_in_a_token(world: World) -> None:
    world.put("extends: built-in")
    keeper = world.start()
    world.clock.now += PUBLISH_SECONDS
    assert world.mint(**AGENT).polv == 2
    world.put(STRICT)
    keeper.tick()
    world.clock.now += PUBLISH_SECONDS - 1
    assert world.mint(**AGENT).polv == 2
    assert world.start().stamp() == 2
    world.clock.now += 1
    assert world.mint(**AGENT).polv == 3


async def test_the_socket_tells_policy_and_problem(world: World, tmp_path: Path) -> None:
    world.put(NARROW)
    keeper = world.start()
    ca = CertificateAuthority(tmp_path / "ca", ISSUER, world.clock)
    witness = Witness(tmp_path / "audit", ISSUER, world.clock)
    runner = web.AppRunner(IssuerServer(world.keys, ca, world.minter, keeper, witness).app())
    await runner.setup()
    try:
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        async with IssuerClient(tmp_path / "s") as client:
            first = await client.policy()
            world.put("grants: [")
            await asyncio.to_thread(keeper.tick)
            second = await client.policy()
    finally:
        await runner.cleanup()
    assert (first.policy, first.loaded_at, first.problem) == (keeper.current, int(world.clock()), "")
    assert second.policy == first.policy
    assert "line" in second.problem


def test_the_process_refuses_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(OBSERVER)
    command = [sys.executable, "-m", "kuangchao_operator.signing", "--dir", tmp_path / "d", "--socket", tmp_path / "s",
               "--issuer", ISSUER, "--policy", file]  # fmt: skip
    path = os.pathsep.join(str(ROOT / folder) for folder in ROOTS.values())
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "grant observer: operations[0]='execution.stop': governance only reads" in line
    assert not (tmp_path / "s").exists()
