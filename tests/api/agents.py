"""Real worker agents as processes beside the API server: what kubelets would start, with the files they would mount."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.api.fakes import Job
from tests.api.kubelets import Gang
from tests.api.server import PATIENCE, ROOT, Object

TALKATIVE = """
import logging, runpy
logging.basicConfig(level=logging.DEBUG)
runpy.run_module("kuangchao_worker.agent", run_name="__main__")
"""
"""The agent with everything logged, whatever library says it."""


class Agent:
    """The agent of one pod, and its ranks."""

    def __init__(self, job: Job, gang: Gang, pod: Object, directory: Path) -> None:
        self._job, self._gang, self._pod = job, gang, pod
        self._directory = directory / pod["metadata"]["name"]
        for part in ("token", "trust", "checkpoints", "run"):
            (self._directory / part).mkdir(parents=True)
        self._mount()
        log = (self._directory / "agent.log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", TALKATIVE], env=self._environment(), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def written(self) -> str:
        """Its log, its ranks' output and its last words."""
        files = (f for f in self._directory.rglob("*") if f.is_file() and f.parent.name not in ("token", "trust"))
        return "\n".join(file.read_bytes().decode(errors="replace") for file in files)

    def wait(self) -> int:
        """Exit code of the agent."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """End it and whatever it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)

    def _mount(self) -> None:
        (self._directory / "token" / "bundle.json").write_text(json.dumps(self._gang.bundle(self._pod)))
        path = f"/api/v1/namespaces/{self._job.site.namespace}/configmaps/kuangchao-trust"
        for name, text in self._job.site.server.request("GET", path)["data"].items():
            (self._directory / "trust" / name).write_text(text)

    def _environment(self) -> dict[str, str]:
        labels = self._pod["metadata"]["labels"]
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'contracts'}:{ROOT / 'worker'}",
            "KUANGCHAO_GATE_URL": f"https://127.0.0.1:{self._job.site.operator.gate_port}",
            "KUANGCHAO_POD": self._pod["metadata"]["name"],
            "KUANGCHAO_POD_UID": self._pod["metadata"]["uid"],
            "KUANGCHAO_POD_INDEX": labels["kuangchao.io/pod-index"],
            "KUANGCHAO_INCARNATION": labels["kuangchao.io/incarnation"],
            "KUANGCHAO_HOST": "127.0.0.1",
            "KUANGCHAO_TOKEN_DIR": str(self._directory / "token"),
            "KUANGCHAO_TRUST_DIR": str(self._directory / "trust"),
            "KUANGCHAO_CHECKPOINTS": str(self._directory / "checkpoints"),
            "KUANGCHAO_TERMINATION_LOG": str(self._directory / "last-words"),
            "KUANGCHAO_RUN_DIR": str(self._directory / "run"),
        }
