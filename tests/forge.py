"""One warm process from which the agents of a test session have their ranks forked, as those of a local run have."""

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from kuangchao_worker.agent.launcher import launched

ROOT = Path(__file__).parents[1]


@functools.cache
def shared_forge() -> Path:
    """Its socket. Made when it is first wanted, ended with the session."""
    folder = tempfile.TemporaryDirectory(prefix="kc-forge-")
    path = Path(folder.name) / "s"
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("KUANGCHAO_", "COVERAGE"))},
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("contracts", "worker", ".")),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [sys.executable, "-m", "kuangchao_worker.forge", str(listener.fileno()), "--shared", "--ranks"]
        # by way of the launcher it ends with us, also where we are killed
        process = subprocess.Popen(
            launched(*command), env=environment, cwd=ROOT, stdin=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),), start_new_session=True,
        )  # fmt: skip

    def end() -> None:
        process.kill()
        process.wait(10)
        folder.cleanup()

    atexit.register(end)
    return path
