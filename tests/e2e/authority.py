"""What the tests of authority do and see on the cluster: a job that walks, its tokens, the release's documents."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.cluster import (
    JWT,
    NAMESPACE,
    PATIENCE,
    RELEASE_NAMESPACE,
    ROOT,
    VOLUMES,
    Job,
    audit,
    eventually,
    get,
    items,
    kc,
    kubectl,
)

STEPS = 240
SPEC = {"training": {"steps": STEPS, "seed": 11, "globalBatch": 64}, "checkpoint": {"everySteps": 10}}
APART = 40
"""Steps between two checkpoints where one of them is to be lost."""
VOLUME = VOLUMES / f"{NAMESPACE}.checkpoints"
POLICY, POLICY_FILE = "kuangchao-policy", "policy.yaml"


class WalkingJob(Job):
    """A job of the task `paced`, which walks until it is told to run."""

    @property
    def mark(self) -> Path:
        """The file that tells it, as this machine sees it."""
        return VOLUME / f"{self.name}.hurry"

    def newest(self) -> int:
        """Step of its newest checkpoint in the ledger, 0 while there is none."""
        return max((c["step"] for c in self.status().get("checkpoints", [])), default=0)

    def wait_commit_after(self, step: int) -> int:
        """Wait for a checkpoint of a later step; its step."""
        return eventually(lambda: self.newest() if self.newest() > step else None, f"a commit after step {step}")

    def finish(self, reference: dict[int, str]) -> dict[str, Any]:
        """Let it run to its end; its status, once its losses are those of an undisturbed run."""
        assert len(self.curve()) < STEPS, "it was over before the test had done its part"
        self.mark.touch()
        self.wait_phase("Complete")
        self.wait_released()
        assert self.curve() == reference
        return self.status()

    def bundles(self) -> dict[str, dict[str, Any]]:
        """Token bundles by pod, from its Secrets."""
        secrets = items("secrets", self.namespace, f"kuangchao.io/job={self.name}")
        return {k: json.loads(base64.b64decode(v)) for secret in secrets for k, v in secret.get("data", {}).items()}

    def tokens(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Head and claims of each token in its Secrets."""
        tokens = [token.split(".") for bundle in self.bundles().values() for token in bundle["tokens"].values()]
        return [(json.loads(_decoded(head)), json.loads(_decoded(claims))) for head, claims, _ in tokens]

    def kids(self) -> set[str]:
        """Keys that signed them."""
        return {head["kid"] for head, _ in self.tokens()}

    def issued(self) -> set[float]:
        """When they were made, in seconds since the epoch."""
        return {claims["iat"] for _, claims in self.tokens()}

    def records(self, *filters: str) -> list[dict[str, Any]]:
        """Audit records about this very job."""
        metadata = self.object()["metadata"]
        found = [item["record"] for item in audit("--since", metadata["creationTimestamp"], *filters)]
        return [record for record in found if record["jobUid"] == metadata["uid"]]


Walk = Callable[..., WalkingJob]
"""The fixture `walk`: name, pace, then fields of the spec."""


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


# ---- the release's documents


def config_map(name: str, key: str, namespace: str = RELEASE_NAMESPACE) -> str:
    """One value of a ConfigMap."""
    found = get("configmaps", name, namespace)
    assert found is not None, name
    return str(found.get("data", {})[key])


def jwks(namespace: str = RELEASE_NAMESPACE) -> dict[str, Any]:
    """The issuer's keys as they are published in a namespace."""
    return dict(json.loads(config_map("kuangchao-trust", "jwks.json", namespace)))


def write_policy(document: str, manager: str) -> None:
    """Edit the policy as somebody."""
    patch = json.dumps({"data": {POLICY_FILE: document}})
    kubectl(
        "patch", "configmap", POLICY, "-n", RELEASE_NAMESPACE, "--type=merge", f"--field-manager={manager}", "-p", patch
    )


@contextmanager
def policy_kept() -> Iterator[str]:
    """The document as it is; written back whatever happens."""
    document = config_map(POLICY, POLICY_FILE)
    try:
        yield document
    finally:
        if config_map(POLICY, POLICY_FILE) != document:
            write_policy(document, "e2e-restore")


@contextmanager
def value_kept(name: str) -> Iterator[str]:
    """A value of the release as it is; set back whatever happens."""
    value = str(release_values()[name])
    try:
        yield value
    finally:
        if str(release_values()[name]) != value:
            set_value(name, value)


def release_values() -> dict[str, Any]:
    """All values of the installed release."""
    return dict(json.loads(kc("helm", "get", "values", "kuangchao", "-n", RELEASE_NAMESPACE, "--all", "-o", "json")))


def set_value(name: str, value: str) -> None:
    """Change one value of the release; the operator is another one afterwards."""
    chart = str(ROOT / "charts" / "kuangchao")
    wait = ("--wait", "--timeout", f"{PATIENCE:.0f}s")
    kc(
        "helm",
        "upgrade",
        "kuangchao",
        chart,
        "-n",
        RELEASE_NAMESPACE,
        "--reuse-values",
        "--set",
        f"{name}={value}",
        *wait,
    )


def metric(name: str) -> float:
    """A gauge of the operator."""
    path = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/services/kuangchao-operator:metrics/proxy/metrics"
    (line,) = [line for line in kubectl("get", "--raw", path).splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


# ---- what people can see


def shown() -> dict[str, str]:
    """All that the pods of the release and of jobs have said, all Events, and all objects that are not secret."""
    logs = ("--all-containers", "--tail=-1", "--prefix", "--ignore-errors")
    kinds = "trainingjobs,parallelplans,resourcepools,pods,services,configmaps,events"
    return {
        "control plane": kubectl("logs", "-n", RELEASE_NAMESPACE, "-l", "app.kubernetes.io/part-of=kuangchao", *logs),
        "workers": kubectl("logs", "-n", NAMESPACE, "-l", "kuangchao.io/job", *logs),
        "objects of the release": kubectl("get", kinds, "-n", RELEASE_NAMESPACE, "-o", "json"),
        "objects of jobs": kubectl("get", kinds, "-n", NAMESPACE, "-o", "json"),
    }


def no_token_is_shown() -> dict[str, str]:
    """Look through all of it; what was looked at."""
    found = shown()
    for place, text in found.items():
        assert JWT.search(text) is None, f"{place} shows {JWT.findall(text)[:1]}"
    return found
