"""The issuer's parts: keys that outlive restarts, what may be minted at all, certificates."""

import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from kuangchao_contracts import errors as e
from kuangchao_contracts.claims import Claims, Grant
from kuangchao_contracts.keys import KeySet, KeyState
from kuangchao_contracts.minting import CertificateRequest, MintRequest
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.signing.ca import CertificateAuthority
from kuangchao_operator.signing.keystore import DAY, RETIRING_SECONDS, KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PolicyKeeper
from tests.unit.authority.kit import ISSUER, MINTABLE, RESOURCE, Clock

GOOD: dict[str, Any] = MINTABLE | {
    "audience": "kc:interface",
    "grants": (Grant(op="interface.exchange", res=RESOURCE), Grant(op="state.commit_checkpoint", res=RESOURCE)),
}
CHILD: dict[str, Any] = GOOD | {
    "audience": "kc:state",
    "grants": (Grant(op="state.commit_checkpoint", res=RESOURCE),),
    "one_shot": True,
    "lifetime_seconds": 60,
}


class Issuer:
    def __init__(self, directory: Path) -> None:
        self.clock, self.directory = Clock(), directory
        self.reopen()

    def reopen(self) -> None:
        self.keys = KeyStore(self.directory, self.clock)
        self.policies = PolicyKeeper(self.directory.parent / "policy", None, self.clock)
        self.minter = Minter(self.keys, ISSUER, self.clock, self.policies)

    def mint(self, **changes: Any) -> str:
        return self.minter.mint(MintRequest(**(GOOD | changes))).token

    def verify(self, token: str, audience: str = "kc:interface") -> Claims:
        return TokenVerifier(KeySet(self.keys.jwks()), ISSUER, self.clock).verify(token, audience)[0]

    def states(self) -> list[KeyState]:
        return [key.state for key in self.keys.jwks().keys]


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "keys")


class TestKeys:
    def test_files_are_private(self, issuer: Issuer) -> None:
        files = list(issuer.directory.iterdir())
        assert {f.suffix for f in files} == {".json", ".key"}
        assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
        assert stat.S_IMODE(issuer.directory.stat().st_mode) == 0o700

    def test_a_restart_goes_on_with_the_same_key(self, issuer: Issuer) -> None:
        token, kid = issuer.mint(), issuer.keys.signing_key()[0]
        issuer.reopen()
        assert issuer.keys.signing_key()[0] == kid
        assert issuer.verify(token).job == "digits"

    def test_rotation(self, issuer: Issuer) -> None:
        first = issuer.keys.signing_key()[0]
        issuer.clock.now += DAY - 121
        assert not issuer.keys.tick()
        issuer.clock.now += 1
        assert issuer.keys.tick()
        issuer.reopen()
        assert issuer.states() == [KeyState.ACTIVE, KeyState.PRE_ACTIVE]
        assert issuer.keys.signing_key()[0] == first
        published = KeySet(issuer.keys.jwks())  # a verifier that reads the keys now and not again for 120 s
        last_of_old = issuer.mint()
        issuer.clock.now += 120
        issuer.keys.tick()
        assert issuer.states() == [KeyState.RETIRING, KeyState.ACTIVE]
        second = issuer.keys.signing_key()[0]
        assert second != first
        TokenVerifier(published, ISSUER, issuer.clock).verify(issuer.mint(), "kc:interface")
        assert issuer.verify(last_of_old)
        issuer.clock.now += RETIRING_SECONDS
        assert issuer.keys.tick()
        assert [key.kid for key in issuer.keys.jwks().keys] == [second]
        assert [f.stem for f in issuer.directory.glob("*.key")] == [second]

    def test_a_retired_key_is_refused_though_nobody_rotates(self, issuer: Issuer) -> None:
        issuer.clock.now += DAY - 120
        issuer.keys.tick()
        jwks = issuer.keys.jwks()
        issuer.clock.now += 120 + RETIRING_SECONDS
        with pytest.raises(e.RetiredKeyError):
            KeySet(jwks).lookup(jwks.keys[0].kid, issuer.clock())
        assert len(issuer.keys.jwks().keys) == 1

    def test_a_late_rotation_still_publishes_first(self, issuer: Issuer) -> None:
        first = issuer.keys.signing_key()[0]
        issuer.clock.now += 10 * DAY
        issuer.reopen()
        assert issuer.keys.signing_key()[0] == first
        assert issuer.keys.jwks().keys[1].state is KeyState.PRE_ACTIVE
        issuer.clock.now += 120
        assert issuer.keys.signing_key()[0] != first

    def test_a_clock_that_jumps_back_still_signs_with_a_known_key(self, issuer: Issuer) -> None:
        issuer.clock.now -= 10 * DAY
        assert issuer.keys.signing_key()[0] == issuer.keys.jwks().keys[0].kid

    def test_a_foreign_key_file_is_refused(self, issuer: Issuer, tmp_path: Path) -> None:
        other = KeyStore(tmp_path / "other", issuer.clock)
        kid = issuer.keys.signing_key()[0]
        foreign = (tmp_path / "other" / f"{other.signing_key()[0]}.key").read_bytes()
        (issuer.directory / f"{kid}.key").write_bytes(foreign)
        with pytest.raises(ValueError, match="does not hold"):
            issuer.reopen()

    def test_keys_are_published_long_enough(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least 120"):
            KeyStore(tmp_path, Clock(), publish_seconds=60)


class TestMint:
    def test_a_lease(self, issuer: Issuer) -> None:
        claims = issuer.verify(issuer.mint())
        assert (claims.sub, claims.att, claims.pod, claims.one, claims.par) == (GOOD["subject"], 3, "w-0", False, None)
        assert claims.exp - claims.iat == 300

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"one_shot": True, "lifetime_seconds": 61}, e.LifetimeExceededError),
            ({"audience": "kc:execution"}, e.InvalidAudienceError),
            ({"grants": (Grant(op="execution.launch", res=RESOURCE),)}, e.PermissionDeniedError),
            ({"grants": (Grant(op="execution.join", res=RESOURCE),)}, e.InvalidAudienceError),
            ({"grants": (Grant(op="interface.nothing", res=RESOURCE),)}, e.UnknownOperationError),
            ({"grants": (Grant(op="interface.feed", res="team-b/jobs/digits"),)}, e.CrossTenantError),
            ({"grants": (Grant(op="interface.feed", res="team-a/jobs/other"),)}, e.PermissionDeniedError),
            ({"grants": (Grant(op="interface.feed", res="team-a/jobs/*"),)}, e.PermissionDeniedError),
            ({"grants": (Grant(op="interface.feed", res="*/jobs/digits"),)}, e.WildcardForbiddenError),
            ({"grants": (Grant(op="interface.feed", res="team-a/pools/digits"),)}, e.PermissionDeniedError),
            ({"pod": None}, e.PermissionDeniedError),
            ({"ranks": None}, e.PermissionDeniedError),
            ({"ranks": "all"}, e.InvalidClaimTypeError),
            ({"subject": "agent:team-a/digits/w-1"}, e.PermissionDeniedError),
            ({"subject": "agent:team-b/digits/w-0"}, e.PermissionDeniedError),
            ({"job_uid": "-"}, e.PermissionDeniedError),
            ({"subject": "layer:root", "pod": None, "ranks": None}, e.PermissionDeniedError),
            ({"subject": "layer:governance", "pod": None, "ranks": None}, e.SeparationOfDutyError),
            ({"subject": "layer:execution"}, e.PermissionDeniedError),
        ],
    )
    def test_what_may_not_exist_is_not_signed(
        self, issuer: Issuer, changes: dict[str, Any], expected: type[e.CapabilityError]
    ) -> None:
        with pytest.raises(e.CapabilityError) as caught:
            issuer.mint(**changes)
        assert type(caught.value) is expected

    def test_outside_any_attempt_only_layers_and_only_attempt_one(self, issuer: Issuer) -> None:
        layer = GOOD | {
            "subject": "layer:execution", "audience": "kc:strategy", "pod": None, "ranks": None, "job_uid": "-",
            "grants": (Grant(op="strategy.plan", res=RESOURCE),),
        }  # fmt: skip
        assert issuer.verify(issuer.mint(**(layer | {"attempt": 1})), "kc:strategy").juid == "-"
        with pytest.raises(e.PermissionDeniedError):
            issuer.mint(**layer)

    def test_a_child_is_narrower_and_names_its_parent(self, issuer: Issuer) -> None:
        parent = issuer.verify(issuer.mint())
        child = issuer.verify(issuer.mint(**CHILD, parent=parent), "kc:state")
        assert (child.par, child.one) == (parent.jti, True)

    @pytest.mark.parametrize(
        "changes",
        [
            {"grants": (Grant(op="state.restore_point", res=RESOURCE),)},
            {"attempt": 4},
            {"job_uid": "uid-2"},
            {"ranks": "0-7"},
            {"pod": "w-1", "subject": "agent:team-a/digits/w-1"},
            {"one_shot": False, "lifetime_seconds": 300},
        ],
    )
    def test_a_child_that_widens_is_refused(self, issuer: Issuer, changes: dict[str, Any]) -> None:
        parent = issuer.verify(issuer.mint())
        issuer.clock.now += 10
        with pytest.raises(e.DelegationError):
            issuer.mint(**(CHILD | changes), parent=parent)

    def test_children_have_no_children(self, issuer: Issuer) -> None:
        lease = issuer.verify(issuer.mint())
        child = issuer.verify(issuer.mint(lifetime_seconds=300, parent=lease))
        assert child.par == lease.jti
        with pytest.raises(e.DelegationError):
            issuer.mint(**CHILD, parent=child)
        one_shot = issuer.verify(issuer.mint(**CHILD, parent=lease), "kc:state")
        with pytest.raises(e.DelegationError):
            issuer.mint(**CHILD, parent=one_shot.replace(par=None))


class TestCa:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def ca(self, tmp_path: Path, clock: Clock) -> CertificateAuthority:
        return CertificateAuthority(tmp_path / "ca", ISSUER, clock)

    @staticmethod
    def csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> str:
        key = key or ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        return request.public_bytes(Encoding.PEM).decode()

    def test_leaf(self, ca: CertificateAuthority, clock: Clock) -> None:
        reply = ca.sign(CertificateRequest(csr_pem=self.csr(), dns_names=("gate.svc",), ip_addresses=("127.0.0.1",)))
        leaf, issuer = x509.load_pem_x509_certificates(reply.chain_pem.encode())
        leaf.verify_directly_issued_by(issuer)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["gate.svc"]
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert issuer.public_bytes(Encoding.PEM).decode() in ca.bundle()
        assert leaf.not_valid_after_utc == datetime.fromtimestamp(clock() + DAY, UTC)

    def test_restart_keeps_the_ca_and_its_files_are_private(
        self, ca: CertificateAuthority, tmp_path: Path, clock: Clock
    ) -> None:
        assert CertificateAuthority(tmp_path / "ca", ISSUER, clock).bundle() == ca.bundle()
        assert {stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "ca").iterdir()} == {0o600}

    def test_a_new_ca_is_published_before_it_signs(self, ca: CertificateAuthority, clock: Clock) -> None:
        old = ca.bundle()
        clock.now += 306 * DAY
        assert ca.tick()
        assert ca.bundle().startswith(old)
        request = CertificateRequest(csr_pem=self.csr(), dns_names=("gate",))
        assert ca.sign(request).chain_pem.endswith(old)
        clock.now += 3_600
        assert not ca.sign(request).chain_pem.endswith(old)
        clock.now += 60 * DAY
        assert ca.tick()
        assert old not in ca.bundle()

    @pytest.mark.parametrize(
        "changes",
        [
            {"dns_names": ()},
            {"dns_names": ("*.svc",)},
            {"dns_names": ("Gate",)},
            {"ip_addresses": ("127.0.0.1/8",)},
            {"csr_pem": "hello"},
        ],
    )
    def test_bad_requests(self, ca: CertificateAuthority, changes: dict[str, Any]) -> None:
        with pytest.raises(e.InvalidInputError):
            ca.sign(CertificateRequest(**({"csr_pem": self.csr(), "dns_names": ("gate",)} | changes)))

    def test_only_elliptic_curve_keys(self, ca: CertificateAuthority) -> None:
        request = CertificateRequest(csr_pem=self.csr(rsa.generate_private_key(65_537, 2_048)), dns_names=("gate",))
        with pytest.raises(e.InvalidInputError):
            ca.sign(request)
