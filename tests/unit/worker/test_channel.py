"""What must arrive waits for an agent that has no time to listen; what the next message says better does not."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kuangchao_operator.layers.execution import limits
from kuangchao_worker.pod.channel import RELIABLE_SECONDS, RankChannel, RankMessage

PATIENCE = 100.0


class Agent:
    """The agent's end, whose queue is full."""

    def __init__(self, path: Path) -> None:
        self.path, self._socket = str(path), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
            filler.setblocking(False)
            try:
                while True:
                    filler.sendto(b"{}", self.path)
            except BlockingIOError:
                pass

    def read(self) -> list[dict[str, Any]]:
        """All that lies in the queue."""
        found = []
        try:
            while True:
                found.append(json.loads(self._socket.recv(1 << 16)))
        except BlockingIOError:
            return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "m.sock")
    yield made
    made.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody waits for room."""
    event, sleep = threading.Event(), time.sleep

    def waiting(seconds: float) -> None:
        event.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", waiting)
    return event


def test_a_word_that_counts_waits_for_room_whatever_else_is_said(agent: Agent, waits: threading.Event) -> None:
    channel, sent = RankChannel(agent.path, 3), list[bool]()
    saver = threading.Thread(target=lambda: sent.append(channel.reliable(RankMessage(rank=3, saved="/c/step-1"))))
    saver.start()
    assert waits.wait(PATIENCE)
    channel.progress(1, "train")  # it does not wait itself, and shortens no other's wait
    agent.read()
    saver.join(PATIENCE)
    assert sent == [True]
    assert [message["saved"] for message in agent.read() if "saved" in message] == ["/c/step-1"]
    channel.close()


def test_what_is_said_again_later_waits_for_a_moment_only(agent: Agent, waits: threading.Event) -> None:
    channel = RankChannel(agent.path, 3)
    assert channel.reliable(RankMessage(rank=3), 0.01) is False
    assert waits.is_set()
    channel.close()


def test_a_rank_is_heard_by_every_agent_that_is_not_lost() -> None:
    assert max(limits.AGENT_LOST, limits.AGENT_STUCK) < RELIABLE_SECONDS


def test_an_agent_that_goes_is_not_waited_for(agent: Agent, waits: threading.Event) -> None:
    channel, sent = RankChannel(agent.path, 3), list[bool]()
    word = threading.Thread(target=lambda: sent.append(channel.reliable(RankMessage(rank=3))))
    word.start()
    assert waits.wait(PATIENCE)
    agent.close()
    word.join(PATIENCE)
    assert sent == [False]
    channel.close()
