"""Stand-ins for what no API server has: kubelets that run pods, and agents that call the gate with their tokens."""

import base64
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.api.fakes import Job, Site
from tests.api.gatecall import GateRefusedError, call_gate, gate_tls
from tests.api.server import PATIENCE, Object, RefusedError

NO_ANSWER = (OSError, http.client.HTTPException, RefusedError)
"""A server that is not there, ends as it answers, or says no."""

A_BEAT = 0.0
"""Seconds for which a heartbeat is tried again: the next one says more."""


def now(ago: float = 0.0) -> str:
    """As objects of Kubernetes tell times; or the time so many seconds before."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago))


def container_status(name: str, state: Object) -> Object:
    """What a kubelet says of a container that was never restarted."""
    return {"name": name, "state": state, "ready": "running" in state, "restartCount": 0, "image": "worker:1",
            "imageID": ""}  # fmt: skip


class Kubelets(threading.Thread):
    """Runs the pods of a site: binds them where their affinity says, makes them ready, ends those that are deleted."""

    def __init__(self, site: Site, *, starting: bool = True) -> None:
        super().__init__(daemon=True)
        self._site, self._end = site, threading.Event()
        self.starting = starting
        """Whether pods that are not bound yet are started."""
        self.dead: set[str] = set()
        """Nodes whose kubelet does nothing any more."""

    def run(self) -> None:
        while not self._end.wait(0.1):
            with contextlib.suppress(*NO_ANSWER):
                for pod in self._site.items("pods"):
                    if not self._end.is_set():
                        with contextlib.suppress(RefusedError):  # it went, or changed, in between
                            self._tend(pod)

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self.join(PATIENCE)

    def _tend(self, pod: Object) -> None:
        path = f"/api/v1/namespaces/{self._site.namespace}/pods/{pod['metadata']['name']}"
        node = pod["spec"].get("nodeName")
        if node in self.dead:
            return
        if pod["metadata"].get("deletionTimestamp"):
            self._site.server.request("DELETE", path, {"gracePeriodSeconds": 0})
        elif node is None and self.starting and "affinity" in pod["spec"]:
            self._bind(path, pod)
        elif node is not None and pod["status"]["phase"] == "Pending":
            self._start(path, pod)

    def _bind(self, path: str, pod: Object) -> None:
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0]
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": node}}
        self._site.server.request("POST", f"{path}/binding", body)

    def _start(self, path: str, pod: Object) -> None:
        state = {"running": {"startedAt": now()}}
        self._status(path, {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now()}],
            "containerStatuses": [container_status(c["name"], state) for c in pod["spec"]["containers"]],
        })  # fmt: skip

    def end(self, pod: Object, ago: float = 0.0) -> None:
        """The training container of a pod ends well, or did so many seconds ago; its side-cars run on."""
        path = f"/api/v1/namespaces/{self._site.namespace}/pods/{pod['metadata']['name']}"
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(ago), "finishedAt": now(ago)}}
        states = {c["name"]: {"running": {"startedAt": now()}} for c in pod["spec"]["containers"]} | {"train": ended}
        self._status(path, {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now()}],
            "containerStatuses": [container_status(*named) for named in states.items()],
        })  # fmt: skip

    def _status(self, path: str, status: Object) -> None:
        self._site.server.request("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")


class Word(NamedTuple):
    """What each agent says of its rank. All of it changes at once: heartbeats go on while a test changes it."""

    step: int = 0
    exit_code: int | None = None


class Gang:
    """The agents of all pods of an incarnation: they join and send heartbeats until they are stopped, each for itself,
    so that one whose call takes long keeps no other from being heard."""

    def __init__(self, job: Job, pods: list[Object]) -> None:
        self._job, self._end = job, threading.Event()
        self.pods = sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["kuangchao.io/pod-index"]))
        self._word = Word()
        self.exits: dict[int, int] = {}
        """Ranks that have ended, with their exit codes, while the others go on."""
        self.words: Object = {}
        """What their agents say of them besides."""
        self.launches: list[Object] = []
        self.refusals: list[tuple[int, str]] = []
        self._attempts: dict[str, int] = {}
        """By pod: the attempt that its agent has joined."""
        self._threads = [threading.Thread(target=self._run, args=(pod,), daemon=True) for pod in self.pods]
        self._tls = gate_tls(job.site)

    def reach(self, step: int) -> None:
        """All ranks have made this step."""
        self._word = self._word._replace(step=step)

    def end(self, exit_code: int, step: int = 0) -> None:
        """All ranks end after this step."""
        self._word = Word(step, exit_code)

    def join_all(self) -> None:
        """Once all pods run, join side by side, as agents do: the gate holds each answer back for a while until all are
        there."""
        self._job.wait(self._pods_run, "pods of the gang run")
        with ThreadPoolExecutor(len(self.pods)) as pool:
            list(pool.map(self.join_one, self.pods))
            self.launches = list(pool.map(self.join_one, self.pods))
        assert all(reply["ready"] for reply in self.launches), self.launches

    def join_one(self, pod: Object) -> Object:
        """One agent joins."""
        join = self._join(pod, self.bundle(pod)["attempt"])
        reply = self.call(pod, "agent/kc:execution", "execution.join", join)
        self._attempts[pod["metadata"]["name"]] = join["attempt"]
        return reply

    def _pods_run(self) -> bool:
        """Whether all pods do: before that there are no agents."""
        found = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self._job.pods()}
        return all(found.get(pod["metadata"]["name"]) == "Running" for pod in self.pods)

    def start(self) -> None:
        """Begin with the heartbeats."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them."""
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, pod: Object) -> None:
        while not self._end.wait(0.3):
            self._beat(pod)

    def _beat(self, pod: Object) -> None:
        """One heartbeat; a refusal is kept."""
        try:
            self.call(pod, "agent/kc:execution", "execution.heartbeat", self._heartbeat(pod), A_BEAT)
        except GateRefusedError as error:
            self.refusals.append((error.status, error.code))
        except NO_ANSWER:
            pass  # no operator just now; or the Secret is gone, of which a real agent still has its old file

    def call(self, pod: Object, key: str, op: str, request: Object, patience: float = PATIENCE) -> Object:
        """A call to the gate with a token of this pod's bundle."""
        token = self.bundle(pod)["tokens"][key]
        resource = f"{self._job.site.namespace}/jobs/{self._job.name}"
        return call_gate(self._job.site.operator, self._tls, token, op, resource, request, patience)

    def call_as(self, token: str, op: str, resource: str, request: Object) -> Object:
        """A call to the gate with any token."""
        return call_gate(self._job.site.operator, self._tls, token, op, resource, request, PATIENCE)

    def refuses(self, token: str) -> bool:
        """Whether the gate takes an agent's lease no more; a call without content gets as far as its content."""
        resource = f"{self._job.site.namespace}/jobs/{self._job.name}"
        try:
            self.call_as(token, "execution.heartbeat", resource, {})
        except GateRefusedError as error:
            if error.status in (400, 401):
                return error.status == 401
            raise
        raise AssertionError("a heartbeat without content was taken")

    def bundle(self, pod: Object) -> Object:
        """What the kubelet would show in the pod's file."""
        source = next(v["secret"] for v in pod["spec"]["volumes"] if v["name"] == "kuangchao-token")
        path = f"/api/v1/namespaces/{self._job.site.namespace}/secrets/{source['secretName']}"
        data = self._job.site.server.request("GET", path)["data"]
        return dict(json.loads(base64.b64decode(data[source["items"][0]["key"]])))

    @staticmethod
    def _join(pod: Object, attempt: int) -> Object:
        labels = pod["metadata"]["labels"]
        index = int(labels["kuangchao.io/pod-index"])
        return {
            "attempt": attempt, "incarnation": int(labels["kuangchao.io/incarnation"]),
            "podIndex": index, "pod": pod["metadata"]["name"], "host": "127.0.0.1",
            "podUid": pod["metadata"]["uid"],
            "storePort": 29400 if index == 0 else 0, "storePrefix": "p" if index == 0 else "",
        }  # fmt: skip

    def _heartbeat(self, pod: Object) -> Object:
        index = int(pod["metadata"]["labels"]["kuangchao.io/pod-index"])
        word = self._word
        code = self.exits.get(index, word.exit_code)
        rank: Object = {"rank": index, "state": "Running", "step": word.step, "section": "train"}
        if code is not None:
            rank |= {"state": "Exited", "exitCode": code, **(self.words if index in self.exits else {})}
        join = self._join(pod, self._attempts[pod["metadata"]["name"]])
        return {"join": join, "ranks": [rank], "metrics": {"loss": "0.5"} if index == 0 else {}}


@contextlib.contextmanager
def running(*threads: Any) -> Iterator[None]:
    """Threads that run inside the block."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.stop()
