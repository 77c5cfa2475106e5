"""`kuangchao token`: offline judgement by the class of the fault, and what is written to take something back."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.keys import KeyState
from kuangchao_operator.cli import cluster
from kuangchao_operator.cli.main import app
from tests.unit.authority.kit import ATTEMPT, ISSUER, Clock, Signer
from tests.unit.kube.bodies import UID, job

JTI, KID = "A" * 22, "k" * 43
PATH = "/api/v1/namespaces/kuangchao-system/configmaps/kuangchao-revocations"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["token", *arguments])


class Files:
    """A token of now and the keys that judge it."""

    def __init__(self, directory: Path) -> None:
        self.signer = Signer(Clock(time.time()))
        self.token, self.jwks = directory / "token", directory / "jwks.json"
        self.token.write_text(self.signer.token())
        self.publish()

    def publish(self, denied: tuple[str, ...] = (), **members: Any) -> None:
        public = self.signer.public
        key = {"kty": "OKP", "crv": "Ed25519", "x": public.x, "kid": public.kid, "use": "sig", **members}
        self.jwks.write_text(json.dumps({"keys": [key], "denied": denied}))

    def verify(self, *more: str, audience: str = "kc:state", issuer: str = ISSUER) -> Result:
        options = ("--jwks", str(self.jwks), "--audience", audience, "--issuer", issuer)
        return call("verify", str(self.token), *options, *more)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_good_token_shows_its_claims_and_not_itself(files: Files) -> None:
    found = files.verify("--attempt", str(ATTEMPT))
    assert found.exit_code == 0
    assert json.loads(found.stdout)["sub"] == "agent:team-a/digits/w-0"
    assert files.token.read_text() not in found.output


@pytest.mark.parametrize(
    ("change", "options", "name"),
    [
        ({"exp": 1, "iat": 0, "nbf": 0}, {}, "ExpiredSignatureError"),
        ({"admin": True}, {}, "UnexpectedClaimError"),
        ({"jti": ...}, {}, "MissingRequiredClaimError"),
        ({}, {"audience": "kc:execution"}, "InvalidAudienceError"),
        ({}, {"issuer": "kuangchao/other"}, "InvalidIssuerError"),
    ],
)
def test_a_bad_token_is_named_by_its_fault(
    files: Files, change: dict[str, Any], options: dict[str, str], name: str
) -> None:
    files.token.write_text(files.signer.token(**change))
    found = files.verify(**options)
    assert (found.exit_code, found.stdout, found.stderr) == (3, "", f"{name}\n")


def test_keys_decide_and_so_does_the_attempt(files: Files) -> None:
    assert files.verify("--attempt", str(ATTEMPT + 1)).stderr == "StaleEpochError\n"
    assert files.verify("--attempt", str(ATTEMPT - 1)).stderr == "FutureEpochError\n"
    files.publish(denied=(files.signer.public.kid,))
    assert files.verify().stderr == "RevokedKeyError\n"
    files.publish(state=KeyState.RETIRING, useUntil=1)
    assert files.verify().stderr == "RetiredKeyError\n"
    files.signer = Signer(Clock())
    files.publish()
    assert files.verify().stderr == "UnknownKeyError\n"


@pytest.mark.parametrize("raw", [b"", b" a.b.c", b"a.b.c\n", "é".encode(), b"\xff", b"a" * 10_000])
def test_bytes_that_are_no_token(files: Files, raw: bytes) -> None:
    files.token.write_bytes(raw)
    found = files.verify("-o", "json")
    assert found.exit_code == 3
    assert json.loads(found.stderr)["error"]["class"] in ("MalformedTokenError", "TokenTooLargeError")


@pytest.mark.parametrize("text", ["", "[]", '{"keys": [{}]}', '{"keys": [{"x": "short", "kty": "OKP"}]}'])
def test_a_key_file_that_is_none_is_bad_input(files: Files, text: str) -> None:
    files.jwks.write_text(text)
    found = files.verify()
    assert (found.exit_code, "--jwks" in found.stderr) == (2, True)


class FakeCluster:
    """Answers like an API server that holds one job and the ConfigMap."""

    data: dict[str, str] = {}
    sent: list[tuple[str, str, Any]] = []

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self.namespace = namespace

    def job(self, name: str) -> TrainingJob:
        assert (self.namespace, name) == ("team", "j")
        return TrainingJob.model_validate(job())

    def request(self, method: str, path: str, body: Any = None) -> Any:
        self.sent.append((method, path, body))
        fields = {"f:data": {f"f:{key}": {} for key in self.data}}
        entry = {"manager": "kubectl-patch", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields}
        return {"metadata": {"managedFields": [entry]}, "data": self.data}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    made = type("Made", (FakeCluster,), {"data": {}, "sent": []})
    monkeypatch.setattr(cluster, "Cluster", made)
    return made


@pytest.mark.parametrize(
    ("options", "key"),
    [(("--jti", JTI), f"jti.{JTI}"), (("--kid", KID), f"kid.{KID}"), (("--job", "team/j"), f"job.{UID}")],
)
def test_revoking_writes_one_key(fake: type[FakeCluster], options: tuple[str, str], key: str) -> None:
    found = call("revoke", *options, "-o", "json")
    assert json.loads(found.stdout)["key"] == key
    assert fake.sent == [("PATCH", PATH, {"data": {key: ""}})]


def test_restoring_removes_the_key_of_what_is_revoked(fake: type[FakeCluster]) -> None:
    assert call("restore", "--job", "team/j").exit_code == 1
    assert [method for method, _, _ in fake.sent] == ["GET"]
    fake.data[f"job.{UID}"] = ""
    assert call("restore", "--job", "team/j").exit_code == 0
    assert fake.sent[-1] == ("PATCH", PATH, {"data": {f"job.{UID}": None}})


@pytest.mark.parametrize(
    "options", [(), ("--jti", JTI, "--kid", KID), ("--jti", "short"), ("--kid", JTI), ("--job", "noslash")]
)
def test_bad_options_reach_no_cluster(fake: type[FakeCluster], options: tuple[str, ...]) -> None:
    assert call("revoke", *options).exit_code == 2
    assert fake.sent == []


def test_the_list_says_what_until_when_and_who(fake: type[FakeCluster]) -> None:
    end = int(time.time()) + 100
    fake.data.update({f"jti.{JTI}": str(end), f"job.{UID}": "", "oops": ""})
    found = json.loads(call("revocations", "-o", "json").stdout)
    by = "kubectl-patch at 2026-01-01T00:00:00Z"
    assert found["revocations"] == [
        {"kind": "job", "id": UID, "until": None, "by": by},
        {"kind": "jti", "id": JTI, "until": end, "by": by},
    ]
    assert [entry["key"] for entry in found["malformed"]] == ["oops"]
    text = call("revocations")
    assert (JTI in text.stdout, "oops is ignored" in text.stderr) == (True, True)
