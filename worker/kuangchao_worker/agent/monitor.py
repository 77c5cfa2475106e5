"""The agent's end of the rank channel: hands on each message of a rank. Keeps and judges nothing."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from kuangchao_worker.pod.channel import MAX_MESSAGE, RankMessage

log = logging.getLogger("kuangchao.monitor")


class Monitor:
    """Hears the ranks of one attempt on a socket of its own, so that a rank of an older one is not heard."""

    def __init__(self, path: Path, on_message: Callable[[RankMessage], None]) -> None:
        self.path, self._on_message = path, on_message
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        asyncio.get_running_loop().add_reader(self._socket, self.drain)

    def drain(self) -> None:
        """Take every message that has arrived. Also called when a rank has ended, before anybody judges its end."""
        while True:
            try:
                raw = self._socket.recv(MAX_MESSAGE)
            except (BlockingIOError, OSError):
                return
            try:
                message = RankMessage.model_validate_json(raw)
            except ValidationError:
                log.warning("a rank sent a message that is not ours")
                continue
            self._on_message(message)

    def close(self) -> None:
        """Stop listening."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
