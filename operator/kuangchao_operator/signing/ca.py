"""The certificate authority of the gate: self-made, kept by the issuer, signs short-lived certificates from CSRs.

Private keys of leaves never come here. A CA is published for a while before it signs, as signing keys are.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.minting import CertificateReply, CertificateRequest
from kuangchao_operator.signing.files import private_directory, write_private

CA_LIFETIME: Final = timedelta(days=365)
CA_RENEW_BEFORE: Final = timedelta(days=60)
PUBLISH_BEFORE_USE: Final = timedelta(hours=1)
LEAF_LIFETIME: Final = timedelta(hours=24)
BACKDATE: Final = timedelta(minutes=5)
"""Clocks of workers may be behind."""


@dataclass(frozen=True)
class Authority:
    """One CA certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        """The certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()


class CertificateAuthority:
    """The CAs below one directory, oldest first."""

    def __init__(self, directory: Path, name: str, clock: Callable[[], float]) -> None:
        self._directory, self._name, self._clock = private_directory(directory), name, clock
        self._authorities = [self._load(path) for path in sorted(self._directory.glob("*.pem"))]
        self.tick()

    def tick(self) -> bool:
        """Make the next CA in time and drop expired ones. Whether the bundle changed."""
        now = self._now()
        kept = [a for a in self._authorities if a.certificate.not_valid_after_utc > now]
        renew = not kept or kept[-1].certificate.not_valid_after_utc - CA_RENEW_BEFORE <= now
        if renew:
            kept.append(self._make(now))
        changed = kept != self._authorities
        self._authorities = kept
        return changed

    def bundle(self) -> str:
        """PEM of every CA to trust."""
        return "".join(authority.pem for authority in self._authorities)

    def sign(self, request: CertificateRequest) -> CertificateReply:
        """A certificate for the names of the request and the key of its CSR. Raises InvalidInputError."""
        csr = _load_csr(request.csr_pem)
        names = _names(request)
        authority, now = self._signing(), self._now()
        not_after = min(now + LEAF_LIFETIME, authority.certificate.not_valid_after_utc)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if request.client else ExtendedKeyUsageOID.SERVER_AUTH
        leaf = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(names[0].value)[:64])]))
            .issuer_name(authority.certificate.subject)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_issued_by(authority.key), critical=False)
            .sign(authority.key, hashes.SHA256())
        )
        chain = leaf.public_bytes(Encoding.PEM).decode() + authority.pem
        return CertificateReply(chain_pem=chain, not_after=int(not_after.timestamp()))

    def _signing(self) -> Authority:
        published = [
            a
            for a in self._authorities
            if a.certificate.not_valid_before_utc + BACKDATE + PUBLISH_BEFORE_USE <= self._now()
        ]
        return published[-1] if published else self._authorities[0]

    def _make(self, now: datetime) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{self._name} gate CA"[:64])])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(now + CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        authority = Authority(certificate, key)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path = self._directory / f"{int(now.timestamp()):012d}.pem"
        write_private(path, private + authority.pem.encode())
        return authority

    def _load(self, path: Path) -> Authority:
        data = path.read_bytes()
        key = load_pem_private_key(data, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{path.name} does not hold an elliptic curve key")
        return Authority(x509.load_pem_x509_certificate(data), key)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(int(self._clock()), UTC)


def _load_csr(pem: str) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(pem.encode())
        genuine = csr.is_signature_valid
    except (ValueError, InvalidSignature):
        genuine, csr = False, None
    if csr is None or not genuine:
        raise InvalidInputError("csrPem", "(not shown)", "is not a certificate request signed by its own key")
    if not isinstance(csr.public_key(), ec.EllipticCurvePublicKey):
        raise InvalidInputError("csrPem", "(not shown)", "key must be on an elliptic curve", "P-256")
    return csr


def _names(request: CertificateRequest) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for name in request.dns_names:
        if not name or name != name.lower() or "*" in name or not name.isascii():
            raise InvalidInputError("dnsNames", name, "must be one lower-case ASCII host name")
        names.append(x509.DNSName(name))
    for text in request.ip_addresses:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            raise InvalidInputError("ipAddresses", text, "is not an IP address") from None
    if not names:
        raise InvalidInputError("dnsNames", [], "a certificate needs at least one name")
    return names


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
