"""The gate's serving certificate: asked of the issuer, renewed before it ends. The key never leaves this process."""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.minting import CertificateRequest
from kuangchao_operator.gate.issuer_client import IssuerClient

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 30.0


class ServingCertificate:
    """An SSL context whose certificate is replaced in place: open connections go on, new ones see the new one."""

    def __init__(
        self,
        issuer: IssuerClient,
        dns_names: Sequence[str],
        ip_addresses: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._issuer, self._clock = issuer, clock
        self._dns_names, self._ip_addresses = tuple(dns_names), tuple(ip_addresses)
        self._wait = 0.0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    async def renew(self) -> None:
        """Put a new certificate in place. Raises UnavailableError; then the old one stays."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        reply = await self._issuer.certificate(
            CertificateRequest(
                csr_pem=request.public_bytes(Encoding.PEM).decode(),
                dns_names=self._dns_names,
                ip_addresses=self._ip_addresses,
            )
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        await asyncio.to_thread(self._load, private + reply.chain_pem.encode())
        self._wait = max((reply.not_after - self._clock()) / 2, RETRY_SECONDS)

    def _load(self, pem: bytes) -> None:
        # the ssl module reads files only
        with tempfile.TemporaryDirectory(prefix="kuangchao-tls-") as directory:
            path = Path(directory) / "serving.pem"
            path.touch(mode=0o600)
            path.write_bytes(pem)
            self.context.load_cert_chain(path)

    async def keep(self) -> None:
        """Renew for ever, each time when half the life of the certificate is over; a failure is soon tried again."""
        while True:
            await asyncio.sleep(self._wait)
            try:
                await self.renew()
            except KuangchaoError as error:
                log.warning("cannot renew the serving certificate: %s", error)
                self._wait = RETRY_SECONDS
