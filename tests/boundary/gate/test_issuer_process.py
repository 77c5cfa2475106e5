"""The issuer's process: it alone has the keys, it refuses with the reason, and it comes back."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import Grant
from kuangchao_contracts.minting import CertificateRequest, MintRequest
from kuangchao_operator.gate.issuer_client import IssuerClient
from kuangchao_operator.gate.minting import PodRef
from tests.boundary.gate.plane import ENVIRONMENT, JOB, World, issuer_arguments, process


async def test_keys_are_the_issuers_alone(world: World, issuer_home: Path) -> None:
    socket = issuer_home / "issuer.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o660
    files = [p for p in (issuer_home / "issuer").rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".key", ".json", ".pem"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}
    modules = ("gate.server", "gate.minting", "gate.tls", "gate.trust", "gate.frontdoor", "audit.sink", "audit.server")
    imports = ", ".join(f"kuangchao_operator.{name}" for name in modules)
    check = f"import sys, {imports}; sys.exit('kuangchao_operator.signing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], env=ENVIRONMENT, timeout=60).returncode == 0


async def test_issuer_refuses_with_the_reason_and_mints_batches(world: World) -> None:
    wanted = MintRequest(
        subject="layer:governance", audience="kc:execution", namespace="team-a", job="digits", job_uid="uid-1",
        grants=(Grant(op="execution.stop", res=JOB.resource),), one_shot=True, lifetime_seconds=60,
    )  # fmt: skip
    with pytest.raises(e.SeparationOfDutyError):
        await world.issuer.mint([wanted])
    with pytest.raises(e.InvalidInputError):
        await world.issuer.certificate(CertificateRequest(csr_pem="x", dns_names=("a",)))
    pods = [PodRef(f"p-{n}", (n,)) for n in range(300)]
    bundles = await world.tokens.worker_bundles(JOB, 1, pods)
    assert len({token for bundle in bundles for token in bundle.tokens.values()}) == 1_800


async def test_issuer_away_and_back(tmp_path: Path) -> None:
    socket, arguments = tmp_path / "issuer.sock", issuer_arguments(tmp_path)
    async with IssuerClient(socket, timeout_seconds=5) as client:
        with pytest.raises(e.UnavailableError):
            await client.jwks()
        async with process("kuangchao_operator.signing", *arguments, log=tmp_path / "log") as child:
            await client.wait_ready(60)
            keys = await client.jwks()
            child.send_signal(signal.SIGKILL)
        assert socket.exists()
        with pytest.raises(e.UnavailableError):
            await client.ca()
        async with process("kuangchao_operator.signing", *arguments, log=tmp_path / "log"):
            await client.wait_ready(60)
            assert await client.jwks() == keys
