"""The operator and its issuer as real processes on a real API server, and the nodes and jobs that they see there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.api.server import API, PATIENCE, ROOT, ApiServer, Object, RefusedError
from tests.ports import free_ports

T = TypeVar("T")
RELEASE = "kuangchao-system"
NODE_AGENT = f"system:serviceaccount:{RELEASE}:kuangchao-node-agent"
CHART = ROOT / "charts" / "kuangchao"
RESTS_AFTER = 3
"""Rounds in which what was due when a job came to rest may still be written to it."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / part) for part in ("contracts", "operator"))}


def eventually(probe: Callable[[], T | None], what: object, timeout: float = PATIENCE) -> T:
    """Ask until the answer is truthy; the limit bounds a hang and is no claim about speed."""
    end = time.monotonic() + timeout
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:.0f} s: {what() if callable(what) else what}")
        time.sleep(0.05)


def install(server: ApiServer, *values: str) -> None:
    """CRDs, accounts and policies as the chart makes them; its Deployments find no node and stay pending."""
    server.kubectl("create", "namespace", RELEASE)
    sets = [part for value in ("jobNamespaces={*}", *values) for part in ("--set", value)]
    server.helm("install", "kuangchao", CHART, "-n", RELEASE, "--timeout", f"{PATIENCE:.0f}s", *sets)
    server.kubectl("wait", "--for=condition=Established", f"--timeout={PATIENCE:.0f}s", "-f", ROOT / "crds")
    eventually(lambda: _guarded(server), "the chart's policies are in force")


def _guarded(server: ApiServer) -> bool:
    """Whether not even an administrator may make what only the operator makes."""
    probe = {"metadata": {"name": "probe", "labels": {"kuangchao.io/job": "x"}}}
    try:
        server.request("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", probe)
    except RefusedError as error:
        return "kuangchao-children" in str(error)
    return False


class Operator:
    """Operator and issuer with their state in one folder; the operator logs in as a ServiceAccount, nothing more."""

    def __init__(
        self, server: ApiServer, directory: Path, account: str = "kuangchao-operator", **settings: str
    ) -> None:
        self._server, self.directory, self._extra = server, directory, settings
        self.gate_port, self.metrics_port = free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kubeconfig = directory / "kubeconfig"
        self._kubeconfig.write_text(account_config(server, account))
        self._kubeconfig.chmod(0o600)

    @property
    def pid(self) -> int:
        """Process id of the operator."""
        return self._processes["operator"].pid

    @property
    def running(self) -> bool:
        """Whether the operator runs."""
        return "operator" in self._processes

    def start(self) -> None:
        """Start what does not run and wait until the operator decides."""
        if "issuer" not in self._processes:
            self._spawn(
                "issuer",
                "kuangchao_operator.signing",
                "--dir",
                self.directory / "keys",
                "--socket",
                self.directory / "issuer.sock",
                "--issuer",
                "kuangchao/test",
            )
        self._spawn("operator", "kuangchao_operator.app")
        eventually(self._ready, lambda: f"operator ready\n{self.log()}")

    def kill(self) -> None:
        """kill -9 of the operator."""
        process = self._processes.pop("operator")
        process.kill()
        process.wait(PATIENCE)

    def terminate(self) -> int:
        """SIGTERM of the operator; its exit status."""
        process = self._processes.pop("operator")
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)

    def stop(self) -> None:
        """End both processes, whatever state they are in."""
        for process in self._processes.values():
            process.kill()
            process.wait(PATIENCE)
        self._processes.clear()

    def log(self) -> str:
        """The end of the operator's log."""
        return (self.directory / "operator.log").read_text()[-6000:]

    def written(self) -> str:
        """All that operator and issuer have logged, and the bytes of the audit store."""
        files = [*self.directory.glob("*.log"), *(f for f in (self.directory / "audit").rglob("*") if f.is_file())]
        return "\n".join(file.read_bytes().decode(errors="replace") for file in files)

    def metrics(self) -> str:
        """Its metrics."""
        return _read(f"http://127.0.0.1:{self.metrics_port}/metrics")

    def _ready(self) -> bool:
        code = self._processes["operator"].poll()
        assert code is None, f"operator ended with {code}\n{self.log()}"
        try:
            return _read(f"http://127.0.0.1:{self.metrics_port}/readyz") == "ok"
        except OSError:
            return False

    def _spawn(self, name: str, module: str, *arguments: object) -> None:
        log = (self.directory / f"{name}.log").open("ab")
        command = [sys.executable, "-m", module, *map(str, arguments)]
        environment = ENVIRONMENT | self._settings() if name == "operator" else ENVIRONMENT
        with log:
            self._processes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _settings(self) -> dict[str, str]:
        return {
            "KUBECONFIG": str(self._kubeconfig),
            "KUANGCHAO_NAMESPACE": RELEASE,
            "KUANGCHAO_CLUSTER_NAME": "test",
            "KUANGCHAO_GATE_URL": f"https://127.0.0.1:{self.gate_port}",
            "KUANGCHAO_WORKER_IMAGE": "worker:1",
            "KUANGCHAO_ISSUER_SOCKET": str(self.directory / "issuer.sock"),
            "KUANGCHAO_AUDIT_DIR": str(self.directory / "audit"),
            "KUANGCHAO_HOST": "127.0.0.1",
            "KUANGCHAO_GATE_PORT": str(self.gate_port),
            "KUANGCHAO_METRICS_PORT": str(self.metrics_port),
            **self._extra,
        }


def account_config(server: ApiServer, account: str, *binding: str) -> str:
    """A kubeconfig that logs in as an account of the release; its token may be bound to an object."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    token = server.kubectl("create", "token", account, "-n", RELEASE, "--duration=3h", *binding).strip()
    config["users"][0]["user"] = {"token": token}
    return yaml.safe_dump(config)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


class Site:
    """A namespace with a pool of its own nodes, and everything that a test does in it."""

    def __init__(self, server: ApiServer, operator: Operator, name: str, nodes: dict[str, int]) -> None:
        self.server, self.operator, self.namespace, self.pool = server, operator, name, name
        self._devices = sum(nodes.values())
        server.kubectl("create", "namespace", name)
        for node, devices in nodes.items():
            self.add_node(node, devices)
        self.create_pool()
        eventually(self._account, "the namespace's default account, without which no pod is accepted")

    def settle(self) -> None:
        """Wait until the operator knows all of it: what it says of a job before may be said of a smaller pool."""
        eventually(
            lambda: self.pool_object().get("status", {}).get("total") == self._devices, "all devices are counted"
        )

    def _account(self) -> bool:
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        return "default" in [body["metadata"]["name"] for body in self.server.request("GET", path)["items"]]

    def create_pool(self) -> None:
        """The pool over this site's nodes."""
        self.server.create({
            "apiVersion": "kuangchao.io/v1alpha1", "kind": "ResourcePool", "metadata": {"name": self.pool},
            "spec": {"nodeSelector": {"site": self.pool}},
        })  # fmt: skip

    def node(self, name: str) -> str:
        """Full name of a node of this site."""
        return f"{self.pool}-{name}"

    def add_node(self, name: str, devices: int) -> None:
        """A ready node with so many CPU devices, and its descriptor."""
        full = self.node(name)
        labels = {"site": self.pool, "kubernetes.io/hostname": full}
        self.server.request("POST", "/api/v1/nodes", {"metadata": {"name": full, "labels": labels}})
        self.set_ready(name, ready=True)
        host = {"allocatableMilliCpu": devices * 1000, "allocatableMemoryBytes": devices * 2**30}
        descriptor = {
            "apiVersion": "kuangchao.io/v1alpha1", "kind": "ResourceDescriptor", "metadata": {"name": f"{full}-1"},
            "spec": {"node": full, "generation": 1, "observedAt": "2026-01-01T00:00:00Z", "host": host},
        }  # fmt: skip
        self.server.request("POST", f"{API}/resourcedescriptors", descriptor, user=NODE_AGENT)

    def set_ready(self, name: str, *, ready: bool) -> None:
        """What the node controller would write."""
        condition = {
            "type": "Ready", "status": "True" if ready else "Unknown", "reason": "Kubelet", "message": "",
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }  # fmt: skip
        path = f"/api/v1/nodes/{self.node(name)}/status"
        self.server.request(
            "PATCH", path, {"status": {"conditions": [condition]}}, "application/strategic-merge-patch+json"
        )

    def job(self, name: str, count: int = 2, **spec: Any) -> "Job":
        """Create a TrainingJob; None removes a field."""
        wanted = {"pool": self.pool, "task": "tasks:train", "devices": {"count": count}, **spec}
        manifest = {
            "apiVersion": "kuangchao.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {key: value for key, value in wanted.items() if value is not None},
        }  # fmt: skip
        self.server.request("POST", f"{API}/namespaces/{self.namespace}/trainingjobs", manifest)
        return Job(self, name)

    def items(self, plural: str, selector: str = "") -> list[Object]:
        """Objects of a kind in the namespace."""
        root = API if plural in ("trainingjobs", "parallelplans") else "/api/v1"
        path = f"{root}/namespaces/{self.namespace}/{plural}?labelSelector={selector}"
        return list(self.server.request("GET", path)["items"])

    def pool_object(self) -> Object:
        """The pool."""
        return self.server.get("ResourcePool", self.pool)

    def touch_pool(self, number: int) -> None:
        """A change of the pool that wakes every waiting job and concerns none; returns once it is taken in."""
        change = {"spec": {"bandwidthPerNode": f"{number + 1}G"}}
        path = f"{API}/resourcepools/{self.pool}"
        made = self.server.request("PATCH", path, change, "application/merge-patch+json")["metadata"]["generation"]
        eventually(lambda: self.pool_object().get("status", {}).get("observedGeneration") == made, "pool taken in")

    def remove(self) -> None:
        """Leave nothing behind that another test could see."""
        for body in self.items("trainingjobs"):
            Job(self, body["metadata"]["name"]).delete()
        for pod in self.items("pods"):
            with contextlib.suppress(RefusedError):
                path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
                self.server.request("DELETE", path, {"gracePeriodSeconds": 0})
        with contextlib.suppress(RefusedError):
            self.server.request("DELETE", f"{API}/resourcepools/{self.pool}")
        for path in ("/api/v1/nodes", f"{API}/resourcedescriptors"):
            for body in self.server.request("GET", path)["items"]:
                if body["metadata"]["name"].startswith(f"{self.pool}-"):
                    self.server.request("DELETE", f"{path}/{body['metadata']['name']}")


class Job:
    """A TrainingJob as its user sees it."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self._path = f"{API}/namespaces/{site.namespace}/trainingjobs/{name}"

    def object(self) -> Object | None:
        """The object, or None."""
        try:
            return self.site.server.request("GET", self._path)
        except RefusedError as error:
            assert "not found" in str(error), error
            return None

    def status(self) -> Object:
        """Its status; {} before the first write."""
        return dict((self.object() or {}).get("status", {}))

    def condition(self, kind: str) -> Object:
        """A condition; {} while it is missing."""
        return next((c for c in self.status().get("conditions", ()) if c["type"] == kind), {})

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        return self.condition(kind).get("status") == "True"

    def patch(self, spec: Object) -> None:
        """Merge patch of the spec."""
        self.site.server.request("PATCH", self._path, {"spec": spec}, "application/merge-patch+json")

    def delete(self) -> None:
        """Ask for deletion; gone already is fine."""
        with contextlib.suppress(RefusedError):
            self.site.server.request("DELETE", self._path)

    def pods(self) -> list[Object]:
        """Pods that bear its name."""
        return self.site.items("pods", f"kuangchao.io/job={self.name}")

    def children(self, plural: str) -> list[Object]:
        """Children of a kind."""
        return self.site.items(plural, f"kuangchao.io/job={self.name}")

    def wait(self, probe: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
        """Wait, and on failure say what the job and the operator say."""
        return eventually(
            probe, lambda: f"{what}\n{json.dumps(self.status(), indent=1)}\n{self.site.operator.log()}", timeout
        )

    def wait_phase(self, *phases: str, timeout: float = PATIENCE) -> None:
        """Wait for one of these phases."""
        self.wait(lambda: self.status().get("phase") in phases, f"{self.name} {phases}", timeout)

    def wait_reason(self, kind: str, reason: str, timeout: float = PATIENCE) -> Object:
        """Wait until a condition has this reason."""
        self.wait(lambda: self.condition(kind).get("reason") == reason, f"{self.name} {kind}={reason}", timeout)
        return self.condition(kind)

    def wait_pods(self, count: int) -> list[Object]:
        """Wait for so many pods."""
        return self.wait(lambda: (len(pods := self.pods()) == count and pods) or None, f"{count} pods")

    def assert_rests(self) -> None:
        """Nothing is written to the job while changes around it wake it again and again, once all that was due is."""
        for _ in range(RESTS_AFTER):
            before = self._version()
            for number in range(5):
                self.site.touch_pool(number)
            if self._version() == before:
                return
        raise AssertionError(f"{self.name} was written to each time: {json.dumps(self.status(), indent=1)}")

    def _version(self) -> str:
        return str((self.object() or {})["metadata"]["resourceVersion"])

    def wait_gone(self, timeout: float = PATIENCE) -> None:
        """Wait until the object and all children are gone."""
        self.wait(lambda: self.object() is None, f"{self.name} gone", timeout)
        for plural in ("pods", "services", "secrets", "parallelplans"):
            self.wait(lambda plural=plural: not self.children(plural), f"{plural} of {self.name} gone", timeout)
