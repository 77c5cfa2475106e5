"""The directory of one run: everything that a cluster would keep in objects, Secrets and volumes, as files."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.local.volatile import Volatile


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of a run: what stays for people to look at, and what must not outlive it."""

    root: Path
    volatile: Volatile

    @property
    def audit(self) -> Path:
        """The audit store."""
        return self.root / "audit"

    @property
    def checkpoints(self) -> Path:
        """Stands for the checkpoint volume."""
        return self.root / "checkpoints"

    @property
    def trust(self) -> Path:
        """Stands for the ConfigMap kuangchao-trust."""
        return self.root / "trust"

    @property
    def keys(self) -> Path:
        """The issuer's own directory."""
        return self.volatile.path / "keys"

    @property
    def issuer_socket(self) -> Path:
        """Where the issuer listens."""
        return self.volatile.path / "issuer.sock"

    @property
    def forge_socket(self) -> Path:
        """Where agents get a process to fork their ranks from."""
        return self.volatile.path / "forge.sock"

    def pod(self, name: str) -> Path:
        """Files of one agent: its run directory, its output."""
        return self.root / "pods" / name

    def token(self, name: str) -> Path:
        """Stands for the token Secret of a pod."""
        return self.volatile.path / "tokens" / name

    def short(self, name: str) -> Path:
        """A link to the run directory of a pod, short enough for its sockets."""
        base = self.volatile.path
        target, link = self.pod(name) / "run", base / f"p{len(list(base.glob('p*')))}"
        target.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        return link

    def record(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file, replaced in one step so that readers never see half of it."""
        replace_file(self.root / name, json.dumps(value, indent=2).encode() + b"\n")

    def close(self) -> None:
        """Remove what must not outlive the run: sockets, keys and tokens."""
        self.volatile.remove()


def open_run(workdir: Path, job: str, now: datetime) -> RunDirectory:
    """A new directory `runs/<job>-<stamp>` below `workdir`; a run that starts in the same second gets another.

    Raises InvalidInputError when it cannot be made.
    """
    stamp, volatile = now.strftime("%Y%m%d-%H%M%S"), Volatile.create()
    try:
        for attempt in range(1_000):
            root = (workdir / "runs" / f"{job}-{stamp}{f'-{attempt}' if attempt else ''}").resolve()
            try:
                root.mkdir(parents=True)
            except FileExistsError:
                continue
            run = RunDirectory(root, volatile)
            for directory in (run.audit, run.checkpoints, run.trust, run.root / "pods"):
                directory.mkdir()
            return run
    except OSError as error:
        volatile.remove()
        raise InvalidInputError("--workdir", str(workdir), f"cannot hold runs: {error.strerror}") from None
    volatile.remove()
    raise InvalidInputError("--workdir", str(workdir), f"has 1000 runs of {job} from this second")


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step, as the kubelet does with mounted Secrets."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
