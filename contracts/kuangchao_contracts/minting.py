"""What may be asked of the issuer over its socket. Values only; the code that signs is in the issuer's process."""

from typing import Annotated, Final

from pydantic import Field

from kuangchao_contracts.base import Contract
from kuangchao_contracts.claims import SYSTEM, Claims, Grant
from kuangchao_contracts.policy import Policy
from kuangchao_contracts.tokens import MAX_LEASE_SECONDS

MINT_PATH: Final = "/v1/mint"
JWKS_PATH: Final = "/v1/jwks"
CA_PATH: Final = "/v1/ca"
CERTIFICATE_PATH: Final = "/v1/certificate"
POLICY_PATH: Final = "/v1/policy"
DENY_PATH: Final = "/v1/deny"
MAX_BATCH: Final = 1_024


class MintRequest(Contract):
    """One token to mint. The issuer adds iss, iat, nbf, exp, jti and the policy generation; it alone reads the clock.

    `parent` are the verified claims of the token that this one is delegated from; the new one may only narrow them.
    """

    subject: Annotated[str, Field(pattern=r"^(layer:[a-z]+|(agent|rank):[a-z0-9./-]+)$", max_length=256)]
    audience: Annotated[str, Field(pattern="^kc:[a-z]+(:[a-z][a-z0-9]*)?$", max_length=64)]
    grants: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=16)]
    namespace: Annotated[str, Field(min_length=1, max_length=63)]
    job: Annotated[str, Field(min_length=1, max_length=253)] = SYSTEM
    job_uid: Annotated[str, Field(min_length=1, max_length=64)] = SYSTEM
    attempt: Annotated[int, Field(ge=1)] = 1
    one_shot: bool = False
    lifetime_seconds: Annotated[int, Field(ge=1, le=MAX_LEASE_SECONDS)]
    ranks: Annotated[str, Field(max_length=256)] | None = None
    pod: Annotated[str, Field(max_length=253)] | None = None
    pod_uid: Annotated[str, Field(max_length=64)] | None = None
    parent: Claims | None = None


class MintBatch(Contract):
    """Tokens to mint together: all or none."""

    requests: Annotated[tuple[MintRequest, ...], Field(min_length=1, max_length=MAX_BATCH)]


class MintedToken(Contract):
    """A token and what its holder must know about it. The token is hidden from repr."""

    token: Annotated[str, Field(max_length=8_192, repr=False)]
    jti: str
    expires: int


class MintReply(Contract):
    """Answer to a batch, in its order."""

    tokens: tuple[MintedToken, ...]


class DenyRequest(Contract):
    """Never sign with this key again; everybody refuses what it signed. Cannot be undone; answered by the JWKS."""

    kid: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$")]


class CertificateRequest(Contract):
    """Sign a serving (or client) certificate for the key of this request. The private key stays with the asker."""

    csr_pem: Annotated[str, Field(max_length=16_384)]
    dns_names: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=64)] = ()
    ip_addresses: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=64)] = ()
    client: bool = False
    """For a client that presents itself by mTLS, instead of a server."""


class CertificateReply(Contract):
    """Leaf first, then its CA. `not_after` in unix seconds."""

    chain_pem: str
    not_after: int


class CaBundle(Contract):
    """Certificates to trust for the gate; two while the CA changes."""

    pem: str


class PolicyReply(Contract):
    """The policy in force, since when (unix seconds), and why what is in the file is not ("": it is)."""

    policy: Policy
    loaded_at: int
    problem: Annotated[str, Field(max_length=1_024)] = ""
