"""Who may ask for audit records: the API server's own word on port-forward, as `kuangchao audit` tells it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kuangchao_contracts.errors import PermissionDeniedError, UnavailableError
from kuangchao_operator.cli.audit_commands import PODS, governance
from kuangchao_operator.cli.cluster import Cluster
from tests.api.fakes import RELEASE, account_config, eventually
from tests.api.server import ApiServer

ACCOUNT, POD = "mei", "governance-by-hand"


@pytest.fixture
def plane(control_plane: ApiServer) -> Iterator[ApiServer]:
    """A pod that looks like governance and is Ready, though no kubelet runs it; and an account without any right."""
    control_plane.kubectl("create", "serviceaccount", ACCOUNT, "-n", RELEASE)
    path = f"/api/v1/namespaces/{RELEASE}/pods"
    container = {"name": "governance", "image": "operator:1"}
    manifest = {"metadata": {"name": POD, "labels": PODS}, "spec": {"containers": [container]}}
    control_plane.request("POST", path, manifest)
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    control_plane.request("PATCH", f"{path}/{POD}/status", ready, "application/merge-patch+json")
    yield control_plane
    control_plane.kubectl("delete", "-n", RELEASE, "--ignore-not-found", "rolebinding/mei", "serviceaccount/mei")
    control_plane.kubectl("delete", "-n", RELEASE, "--now", f"pod/{POD}")


def answer(cluster: Cluster) -> str:
    """What a person without a running governance reads."""
    with (
        pytest.raises((PermissionDeniedError, UnavailableError)) as caught,
        governance(cluster, RELEASE) as port,
    ):
        port.get("/v1/audit", {})
    return str(caught.value)


def bind(plane: ApiServer, role: str) -> None:
    plane.kubectl("delete", "-n", RELEASE, "--ignore-not-found", "rolebinding/mei")
    plane.kubectl("create", "rolebinding", "mei", f"--role={role}", f"--serviceaccount={RELEASE}:mei", "-n", RELEASE)


def test_each_lacking_right_is_named(plane: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "kubeconfig"
    config.touch(mode=0o600)
    config.write_text(account_config(plane, ACCOUNT))
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    cluster = Cluster()
    text = answer(cluster)
    assert 'cannot list resource "pods"' in text
    assert f"bind the Role kuangchao-auditor in namespace {RELEASE}" in text

    plane.kubectl("create", "role", "looker", "-n", RELEASE, "--verb=get,list", "--resource=pods")
    bind(plane, "looker")
    eventually(lambda: "get and create on pods/portforward" in answer(cluster), lambda: answer(cluster))

    bind(plane, "kuangchao-auditor")
    eventually(lambda: "no port-forward to pod" in answer(cluster), lambda: answer(cluster))
    plane.kubectl("delete", "role", "looker", "-n", RELEASE)
