"""Driver of the embedded cluster for e2e tests: kubectl as JSON, our CLI, node faults, files on the shared volume."""

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client, config

from kuangchao_contracts import names

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
KC = str(ROOT / "cluster" / "kc")
VOLUMES = Path(os.environ.get("KC_ROOT", "/var/lib/kuangchao")) / "volumes"
RELEASE_NAMESPACE = "kuangchao-system"
NAMESPACE = "team-a"
"""Of all jobs."""
PATIENCE = 600.0
"""Limit of every wait for something that will happen. It bounds a hang: a machine may be as slow as it is."""
A_COMMAND = 2.0
"""Seconds between two questions that take a program of ours, which uses a core for a second."""
JSON = "application/json"
TOO_MANY, BROKEN = HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR
OWN_KINDS = frozenset({"trainingjobs", "parallelplans", "resourcepools"})
JWT = re.compile(r"eyJ[\w-]+\.eyJ")
"""Head and payload of a token."""
KILL_RANK = """
import os, signal, glob
for path in glob.glob('/proc/[0-9]*/cmdline'):
    try:
        line = open(path, 'rb').read()
    except OSError:  # it has ended
        continue
    if b'kuangchao_worker.rank' in line:
        os.kill(int(path.split('/')[2]), signal.SIGKILL); print('killed'); break
"""
"""A program for `python -c` inside a worker pod."""


def kc(*args: str, timeout: float = 2 * PATIENCE, check: bool = True) -> str:
    """Run a subcommand of the embedded cluster and return its standard output."""
    done = subprocess.run([KC, *args], capture_output=True, text=True, timeout=timeout)
    if check and done.returncode:
        raise AssertionError(f"kc {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def kubectl(*args: str, stdin: str | None = None, check: bool = True, timeout: float = PATIENCE) -> str:
    """kubectl against the embedded cluster."""
    done = subprocess.run([KC, "kubectl", *args], input=stdin, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode:
        raise AssertionError(f"kubectl {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def refused(*args: str, stdin: str | None = None) -> str:
    """What kubectl says to a request that must be refused."""
    done = subprocess.run([KC, "kubectl", *args], input=stdin, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode, f"kubectl {' '.join(args)} was not refused: {done.stdout}"
    return done.stderr


def kuangchao(*args: str, code: int = 0) -> str:
    """Our command line against the embedded cluster: its standard output, once it has ended with this exit code."""
    environment = {**os.environ, "KUBECONFIG": kc("kubeconfig").strip(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kuangchao_operator.cli.main", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.returncode == code, f"kuangchao {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def audit(*filters: str) -> list[dict[str, Any]]:
    """Audit records as `kuangchao audit query` gives them: all that match, or the first ones up to a given limit."""
    answer = json.loads(kuangchao("audit", "query", "-o", "json", *filters))
    assert "--limit" in filters or not answer["truncated"], f"too many records match {filters}"
    return list(answer["records"])


@functools.cache
def _api() -> client.ApiClient:
    """A client of the cluster's API server, who is its administrator. Looking is what these tests do most."""
    return config.new_client_from_config(kc("kubeconfig").strip())


def _read(kind: str, namespace: str, name: str = "", **query: str) -> dict[str, Any] | None:
    """What the API server answers, asked again while it is too busy to; None where there is no such object."""
    prefix = "/apis/kuangchao.io/v1alpha1" if kind in OWN_KINDS else "/api/v1"
    place = "" if kind == "nodes" else f"/namespaces/{namespace}"
    path = f"{prefix}{place}/{kind}" + (f"/{name}" if name else "")
    asked = _api().param_serialize("GET", path, query_params=list(query.items()), header_params={"Accept": JSON})
    answer, end = _api().call_api(*asked, _request_timeout=PATIENCE), time.monotonic() + PATIENCE
    while (answer.status == TOO_MANY or answer.status >= BROKEN) and time.monotonic() < end:
        time.sleep(1)
        answer = _api().call_api(*asked, _request_timeout=PATIENCE)
    body = answer.read()
    if name and answer.status == HTTPStatus.NOT_FOUND:
        return None
    assert answer.status == HTTPStatus.OK, f"{path}: {answer.status} {body[:500]!r}"
    return dict(json.loads(body))


def get(kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
    """One object, or None."""
    return _read(kind, namespace, name)


def items(kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
    """All objects of a kind in a namespace."""
    found = _read(kind, namespace, labelSelector=selector)
    assert found is not None, kind
    return list(found["items"])


def eventually(probe: Callable[[], T | None], what: object, every: float = 0.5) -> T:
    """Ask until the answer is truthy."""
    end = time.monotonic() + PATIENCE
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE:.0f} s: {what() if callable(what) else what}")
        time.sleep(every)


def settled() -> None:
    """Wait until all of the release runs: what was on a node that went may have to start elsewhere."""
    for kind, name in (("deploy", "operator"), ("deploy", "governance"), ("ds", "node-agent")):
        kubectl("rollout", "status", f"{kind}/kuangchao-{name}", "-n", RELEASE_NAMESPACE, f"--timeout={PATIENCE:.0f}s",
                timeout=2 * PATIENCE)  # fmt: skip


class Job:
    """A TrainingJob under test. `owner`: the person who has to delete it, if it names one."""

    def __init__(self, namespace: str, name: str, owner: str | None = None) -> None:
        self.namespace, self.name = namespace, name
        self.by = (f"--as={owner}",) if owner else ()

    def object(self) -> dict[str, Any]:
        """The object; it must exist."""
        found = get("trainingjobs", self.name, self.namespace)
        assert found is not None, f"{self.name} is gone"
        return found

    def status(self) -> dict[str, Any]:
        """Its status, {} before the first write."""
        return dict(self.object().get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition, {} while it is missing."""
        return next((c for c in self.status().get("conditions", []) if c["type"] == kind), {})

    def pods(self) -> list[dict[str, Any]]:
        """Pods of all incarnations."""
        return items("pods", self.namespace, f"kuangchao.io/job={self.name}")

    def nodes(self) -> set[str]:
        """Nodes that its pods are bound to."""
        return {p["spec"]["nodeName"] for p in self.pods() if p["spec"].get("nodeName")}

    def wait_phase(self, *phases: str) -> str:
        """Wait for one of these phases; any other final phase fails at once with the reasons."""
        final = {"Complete", "Failed"} - set(phases)

        def probe() -> str | None:
            phase = str(self.status().get("phase", ""))
            assert phase not in final, f"{self.name} is {phase}: {json.dumps(self.status(), indent=1)}"
            return phase if phase in phases else None

        try:
            return eventually(probe, f"{self.name} {phases}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status(), indent=1)}\n{self.events()}") from None

    def wait_attempt(self, after: int) -> None:
        """Wait for an attempt later than this one; a job that has ended meanwhile fails at once with the reasons."""

        def probe() -> bool:
            status = self.status()
            phase = status.get("phase")
            assert phase not in ("Complete", "Failed"), f"{self.name} is {phase}: {json.dumps(status, indent=1)}"
            return bool(status["attempt"] > after)

        eventually(
            probe,
            lambda: (
                f"{self.name} after attempt {after}: {json.dumps(self.status(), indent=1)}\n{self.events()}"
                f"\n{self.log()}"
            ),
        )

    def log(self) -> str:
        """The end of what its pods have said, for messages."""
        selector = ("-l", f"kuangchao.io/job={self.name}", "--prefix", "--tail=30")
        return kubectl("logs", "-n", self.namespace, *selector, check=False)

    def wait_step(self, step: int) -> None:
        """Wait until this many steps are in the loss log."""
        eventually(lambda: len(self.curve()) >= step, lambda: f"{self.name} at step {step}: {self.status()}", 0.2)

    def wait_released(self) -> None:
        """Wait until the operator has let go of a job that has ended: its last call is made and on record."""
        eventually(lambda: not self.object()["metadata"].get("finalizers"), f"{self.name} released")

    def events(self) -> str:
        """Events of the job and its pods, for messages."""
        return kubectl("get", "events", "-n", self.namespace, check=False)

    def checkpoint_directory(self, claim: str = "checkpoints") -> Path:
        """Directory of this very job on the shared volume, as this machine sees it; earlier ones of its name stay."""
        directory = names.checkpoint_directory(self.name, self.object()["metadata"]["uid"])
        return VOLUMES / f"{self.namespace}.{claim}" / directory

    def curve(self) -> dict[int, str]:
        """Loss of every step in hex, the newest attempt winning; equal curves are equal bit for bit."""
        log = self.checkpoint_directory() / "metrics.jsonl"
        if not log.exists():
            return {}
        entries = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        return {e["step"]: e["loss"] for e in sorted(entries, key=lambda e: (e["attempt"], e["step"]))}

    def delete(self) -> None:
        """Delete and wait until nothing of it is left."""
        kubectl(
            "delete", "trainingjob", self.name, "-n", self.namespace, "--ignore-not-found", "--wait=false", *self.by
        )
        eventually(lambda: get("trainingjobs", self.name, self.namespace) is None, f"{self.name} deleted")
        for kind in ("pods", "secrets", "services", "parallelplans"):
            eventually(lambda k=kind: not items(k, self.namespace, f"kuangchao.io/job={self.name}"), f"{kind} gone")
