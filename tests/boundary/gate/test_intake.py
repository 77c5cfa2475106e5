"""Audit events of the API server come in over mutual TLS."""

import ssl
import time
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kuangchao_contracts.minting import CertificateRequest
from kuangchao_operator.audit.k8s import KubernetesIntake
from kuangchao_operator.audit.server import EVENTS_PATH, IntakeServer, intake_tls
from kuangchao_operator.audit.verify import verify
from tests.boundary.gate.plane import World


async def certificate(world: World, path: Path, *, client: bool) -> None:
    """Key and certificate of the issuer's CA in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    reply = await world.issuer.certificate(
        CertificateRequest(csr_pem=csr.public_bytes(Encoding.PEM).decode(), ip_addresses=("127.0.0.1",), client=client)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    path.write_text(private + reply.chain_pem)


async def test_kubernetes_events_come_in_over_mtls_only(world: World, tmp_path: Path) -> None:
    server_pem, client_pem, ca = tmp_path / "server.pem", tmp_path / "client.pem", tmp_path / "ca.crt"
    await certificate(world, server_pem, client=False)
    await certificate(world, client_pem, client=True)
    intake = IntakeServer(KubernetesIntake(world.sink, time.time))
    port = await intake.start("127.0.0.1", 0, intake_tls(server_pem, server_pem, ca))
    event = {
        "auditID": "1", "stage": "ResponseComplete", "verb": "create", "user": {"username": "alice"},
        "objectRef": {"resource": "trainingjobs", "namespace": "team-a", "name": "digits"},
        "responseStatus": {"code": 201},
    }  # fmt: skip
    stranger = ssl.create_default_context(cafile=ca)
    known = ssl.create_default_context(cafile=ca)
    known.load_cert_chain(client_pem)
    url = f"https://127.0.0.1:{port}{EVENTS_PATH}"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(url, json={"items": [event]}, ssl=stranger)
        async with session.post(url, json={"items": [event]}, ssl=known) as response:
            assert response.status == 200
        async with session.post(url, data=b"x", ssl=known) as response:
            assert response.status == 400
    await intake.stop()
    await world.stop()
    assert [r.subject for r in world.records()] == ["user:alice"]
    assert verify(tmp_path / "audit").ok
