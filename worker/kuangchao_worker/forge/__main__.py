"""Entry point: `python -m kuangchao_worker.forge FD`. Forks ranks and stores for the agent at the other end of FD.

With `--shared` FD listens, and each agent that connects gets such a process, forked from this one; `--ranks`: they will
want ranks, so that it imports what those need before.

Runs no user code and touches no accelerator before a fork, and never forks while it has more than one thread.
"""

import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, Final, NoReturn

from kuangchao_worker.forge.mortal import die_with_parent
from kuangchao_worker.forge.shared import share, threads
from kuangchao_worker.forge.title import set_title
from kuangchao_worker.pod.defaults import RANK_DEFAULTS
from kuangchao_worker.pod.ending import leave

MAX_REQUEST: Final = 1 << 18
BROKEN_EXIT: Final = 70


def warm_up() -> None:
    """Import what a rank needs beyond torch, also what torch imports when it is first used (torch._dynamo: seconds).

    No backward pass: autograd's threads do not survive a fork.
    """
    import torch

    import kuangchao_worker.rank.wiring  # noqa: F401 - for its imports

    module = torch.nn.Linear(1, 1)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(module.parameters()).step()


class Forge:
    """Serves one agent until it hangs up. `warm`: what ranks need is imported."""

    def __init__(self, connection: socket.socket, *, warm: bool = False) -> None:
        self._connection = connection
        self._warm = warm
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer)

    def serve(self) -> None:
        """Take requests and tell of every child that has ended."""
        self._say({"ready": threads() == 1})
        while True:
            ready, _, _ = select.select([self._connection.fileno(), self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 4_096)
                self._reap()
            if self._connection.fileno() in ready and not self._serve_one():
                return

    def _serve_one(self) -> bool:
        raw, descriptors, _, _ = socket.recv_fds(self._connection, MAX_REQUEST, 1)
        if not raw:
            return False
        request = json.loads(raw)
        if "path" in request and not self._warm:
            # not before the first rank: a store needs torch only, and `command` jobs fork no rank
            warm_up()
            self._warm = True
        # the collector writes to every object it looks at, which would copy the pages that parent and child share
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            _become(request, descriptors[0], self._connection)
        os.close(descriptors[0])
        self._say({"pid": pid, "ticket": request["ticket"]})
        return True

    def _reap(self) -> None:
        """Tell of all that have ended in one message.

        A rank that was killed takes its peers along, and whoever heard of a peer alone would blame it.
        """
        ended: list[tuple[int, int]] = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append((found[0], os.waitstatus_to_exitcode(found[1])))
        if ended:
            self._say({"ended": ended})

    def _say(self, message: dict[str, Any]) -> None:
        self._connection.send(json.dumps(message).encode())


def _become(request: dict[str, Any], output: int, connection: socket.socket) -> NoReturn:
    """In the child: cut every tie to the forge, then be what was asked for."""
    code = BROKEN_EXIT
    try:
        parent = os.getppid()
        os.setsid()
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        set_title(request["title"])
        if os.getppid() == parent:
            code = _serve_store(request["attempt"], output) if "attempt" in request else _train(request["path"], output)
    except BaseException:  # noqa: BLE001 - nothing may come back to the loop of the forge
        traceback.print_exc()
    finally:
        leave(code)


def _train(path: str, output: int) -> int:
    from kuangchao_worker.rank.__main__ import main

    os.dup2(output, 2)
    os.close(output)
    return main(path)


def _serve_store(attempt: int, output: int) -> int:
    from kuangchao_worker.pod.store import open_store

    store = open_store(attempt)
    os.write(output, json.dumps({"port": store.port, "prefix": store.prefix}).encode())
    os.close(output)
    while True:
        signal.pause()


def _serve(connection: socket.socket, *, warm: bool = False) -> NoReturn:
    Forge(connection, warm=warm).serve()
    # what was forked dies with this process
    os._exit(0)


def main(descriptor: int, options: list[str]) -> NoReturn:
    """Serve one agent, or all that connect."""
    # torch reads them as it is imported
    os.environ.update({**RANK_DEFAULTS, **os.environ})
    import torch

    torch.set_num_threads(1)
    opened = socket.socket(fileno=descriptor)
    if "--shared" not in options:
        _serve(opened)
    warm = "--ranks" in options
    if warm:
        warm_up()
    share(opened, functools.partial(_serve, warm=warm))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
