"""Taking back tokens, keys and jobs through the ConfigMap, with an operator on a real API server."""

import base64
import json

import pytest

from kuangchao_contracts.audit import AuditQuery
from kuangchao_operator.audit.query import query
from tests.api.fakes import RELEASE, Site, eventually
from tests.api.kubelets import Gang, Kubelets, running
from tests.api.server import Object, RefusedError

PATH = f"/api/v1/namespaces/{RELEASE}/configmaps/kuangchao-revocations"
MERGE = "application/merge-patch+json"


def write(site: Site, key: str, value: str | None = "", user: str | None = None) -> None:
    site.server.request("PATCH", PATH, {"data": {key: value}}, MERGE, user)


def may_write(site: Site, key: str, user: str) -> bool:
    """Write as somebody; False if RBAC refuses it."""
    try:
        write(site, key, user=user)
    except RefusedError as error:
        assert "forbidden" in str(error)
        return False
    return True


def data(site: Site) -> Object:
    return dict(site.server.request("GET", PATH).get("data") or {})


def recorded(site: Site, op: str) -> list[str]:
    """What was done, without who did it."""
    page = query(site.operator.directory / "audit", AuditQuery(operation=op))
    return [item.record.detail.split(" by ")[0] for item in page.records]


def part(token: str, index: int) -> Object:
    text = token.split(".")[index]
    return dict(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))


def lease(gang: Gang) -> str:
    return str(gang.bundle(gang.pods[0])["tokens"]["agent/kc:execution"])


def test_only_the_role_may_write_it(site: Site) -> None:
    with pytest.raises(RefusedError, match="forbidden"):
        write(site, "jti.x", user="mallory")
    site.server.kubectl("create", "rolebinding", f"security-{site.namespace}", "-n", RELEASE,
                        "--role=kuangchao-security", "--user=olga")  # fmt: skip
    eventually(lambda: may_write(site, "nonsense", "olga"), "the binding is in force")
    eventually(lambda: "key nonsense is ignored" in site.operator.written(), "said")
    write(site, "nonsense", None, user="olga")


def test_a_token_and_a_key_are_taken_back_and_training_goes_on(site: Site) -> None:
    job = site.job("goes-on", count=2, training={"steps": 10})
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            stolen = lease(gang)
            assert not gang.refuses(stolen)
            key = f"jti.{part(stolen, 1)['jti']}"
            write(site, key)
            eventually(lambda: gang.refuses(stolen), "the token is refused")
            eventually(lambda: data(site).get(key), "the entry has an end")
            eventually(lambda: lease(gang) != stolen, "a new one is in the Secret")
            kid = part(lease(gang), 0)["kid"]
            old = lease(gang)
            write(site, f"kid.{kid}")
            eventually(lambda: gang.refuses(old), "the key is refused")
            eventually(lambda: part(lease(gang), 0)["kid"] != kid, "the Secret is signed by another key")
            assert not gang.refuses(lease(gang))
            gang.reach(7)
            job.wait(lambda: job.status().get("progress", {}).get("step") == 7, "the gang is heard")
            trust = site.server.request("GET", f"/api/v1/namespaces/{site.namespace}/configmaps/kuangchao-trust")
            assert json.loads(trust["data"]["jwks.json"])["denied"] == [kid]
    assert job.status()["attempt"] == 1
    # what is taken back is refused first, then minted anew, and then recorded
    eventually(lambda: f"kid.{kid}" in recorded(site, "keys.deny"), lambda: recorded(site, "keys.deny"))
    assert recorded(site, "keys.deny") == [f"kid.{kid}"]
    assert key in recorded(site, "token.revoke")
    write(site, key, None)
    write(site, f"kid.{kid}", None)


def test_a_revoked_job_rests_until_it_is_restored(site: Site) -> None:
    job = site.job("stopped", count=2)
    with running(Kubelets(site)):
        gang = Gang(job, job.wait_pods(2))
        gang.join_all()
        with running(gang):
            job.wait_phase("Running")
            token, uid = lease(gang), (job.object() or {})["metadata"]["uid"]
            write(site, f"job.{uid}")
            eventually(lambda: gang.refuses(token), "its tokens are refused")
            assert "kuangchao-revocations" in job.wait_reason("Suspended", "Revoked")["message"]
        job.wait(lambda: not job.pods() and not job.children("secrets"), "nothing of it is left")
        write(site, f"job.{uid}", None)
        again = Gang(job, job.wait_pods(2))
        again.join_all()
        with running(again):
            job.wait_phase("Running")
        assert again.refuses(token), "what was taken back stays so"
    assert job.status()["attempt"] > 1
    reasons = {event["reason"] for event in site.items("events") if event["involvedObject"]["name"] == "stopped"}
    assert {"Revoked", "Resumed"} <= reasons
    eventually(lambda: f"job.{uid}" in recorded(site, "token.restore"), lambda: recorded(site, "token.restore"))
