"""Links between pods: pings find the slow, the lossy and the dead one, tell pod 0, and hear nobody but the gang."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from kuangchao_contracts.run import JoinReply
from kuangchao_worker.agent.links import PATIENCE, SILENCE, Links, Neighbour, Word, key_of, opened, ring, sealed
from kuangchao_worker.agent.pings import Pings
from tests.ports import free_port

KEY = key_of("kc/1/secret")
MILLI = 1_000_000
HOST = "10.0.0.1"


class Net:
    """Pods whose words take `trip(a, b)` nanoseconds there and back, or are lost where it says None."""

    def __init__(self, pods: int, trip: Callable[[int, int], int | None]) -> None:
        self.pods = [Links(pod, pods, 0.0) for pod in range(pods)]
        self.trip, self.now, self.silent = trip, 0.0, set[int]()
        self.words: Counter[tuple[int, int]] = Counter()
        for links in self.pods[1:]:
            links.addresses[0] = (HOST, 0)

    def turn(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now += 1
            for links in self.pods:
                if links.pod not in self.silent:
                    self._ping(links)

    def _ping(self, links: Links) -> None:
        words = links.pings(self.now)
        for word in words:
            links.sent(word.number, 0)
        for word in words:
            self.words[links.pod, word.to] += 1
            taken = self.trip(*sorted((links.pod, word.to)))
            if taken is None or word.to in self.silent:
                continue
            answer = self.pods[word.to].hear(word, (HOST, links.pod + 1), self.now, 0)
            if answer is not None:
                # held for as long as the trip took: that is not the network's time
                links.hear(answer.replace(held=taken), (HOST, word.to), self.now + 1, 2 * taken)

    def metrics(self) -> dict[str, str]:
        return self.pods[0].metrics(self.now)


def evenly(_: int, __: int) -> int:
    return MILLI


def test_a_pod_looks_at_three_others_at_most_and_says_a_word_a_second() -> None:
    assert [ring(pod, 5) for pod in (0, 2, 4)] == [(1, 4), (1, 3), (0, 3)]
    assert (ring(0, 2), ring(1, 2), ring(0, 1)) == ((1,), (0,), ())
    net = Net(8, evenly)
    net.turn(10)
    assert all(len({to for pod, to in net.words if pod == links.pod}) <= 3 for links in net.pods)
    assert max(net.words.values()) == 10


def test_a_large_gang_does_not_crowd_pod_0() -> None:
    net = Net(1_024, evenly)
    net.turn(8)
    asked = Counter({pod: n for (pod, to), n in net.words.items() if to == 0})
    assert (asked[1], asked[2], asked[1_023]) == (8, 2, 8)


def test_the_slowest_and_the_lossiest_link_are_named_wherever_they_are() -> None:
    assert Net(4, evenly).metrics() == {}, "nothing is known yet"
    slow = Net(6, lambda a, b: 40 * MILLI if (a, b) == (3, 4) else MILLI)
    slow.turn(5)
    assert slow.metrics() == {"linkLoss": "0", "linkLatencySeconds": "0.04", "worstLink": "pods 3-4"}
    lossy = Net(6, lambda a, b: None if (a, b) == (2, 3) and lossy.now > 5 else MILLI)
    lossy.turn(30)
    told = lossy.metrics()
    assert told["worstLink"] == "pods 2-3"
    assert 0.5 < float(told["linkLoss"]) < 1
    assert told["linkLatencySeconds"] == "0.001"


def test_a_pod_that_is_not_heard_any_more_is_a_broken_link_and_one_that_left_is_none() -> None:
    net = Net(4, evenly)
    net.turn(5)
    left = net.pods[3].farewell()
    assert left is not None and net.pods[0].hear(left, (HOST, 4), net.now, 0) is None
    net.silent.add(3)
    net.turn(60)
    assert net.metrics()["linkLoss"] == "0"
    net.silent.add(2)
    net.turn(SILENCE)
    assert (net.metrics()["linkLoss"], net.metrics()["worstLink"]) == ("1", "pods 0-2")


def test_pods_that_never_came_are_told_after_a_while() -> None:
    net = Net(2, lambda *_: None)
    net.turn(SILENCE - 1)
    assert net.metrics() == {}
    net.turn()
    assert net.metrics() == {"linkLoss": "1", "worstLink": "pods 0-1"}


def test_late_answers_are_lost_and_a_clock_that_was_set_is_no_latency() -> None:
    links = Links(1, 2, 0.0)
    links.addresses[0] = (HOST, 0)
    late, set_back = (Word(sender=0, to=1, number=n, answer=True) for n in (1, 2))
    assert [word.number for word in links.pings(0.0)] == [1]
    assert [word.number for word in links.pings(PATIENCE)] == [2]
    links.sent(2, 5_000_000_000)
    for answer in (late, set_back, set_back):
        links.hear(answer, (HOST, 0), PATIENCE + 0.5, 1)
    found = links.finding()
    assert found is not None and (found.loss, found.seconds) == (0.5, 0.5)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: sealed(key_of("kc/2/secret"), Word(sender=1, to=0, number=1)),
        lambda raw: raw.replace(b'"number":1', b'"number":2'),
        lambda raw: raw[:20],
        lambda raw: b"",
        lambda raw: sealed(KEY, Word(sender=1, to=0, number=1)) + b" " * 1_024,
    ],
    ids=["another attempt", "changed", "cut", "empty", "long"],
)
def test_words_without_the_key_of_the_attempt_are_not_heard(spoil: Callable[[bytes], bytes]) -> None:
    raw = sealed(KEY, Word(sender=1, to=0, number=1))
    assert opened(KEY, raw) is not None
    assert opened(KEY, spoil(raw)) is None


def test_a_pod_is_told_of_its_neighbours_by_pod_0_alone() -> None:
    links = Links(2, 6, 0.0)
    links.addresses[0] = (HOST, 0)
    near = (Neighbour(pod=3, host=HOST, port=4), Neighbour(pod=5, host=HOST, port=6))
    (ping,) = links.pings(0.0)
    for sender, number in ((1, ping.number), (0, ping.number + 1), (5, ping.number)):
        word = Word(sender=sender, to=2, number=number, answer=True, neighbours=near)
        assert links.hear(word, (HOST, 0), 0.1, 0) is None
        assert links.addresses == {0: (HOST, 0)}
    links.hear(Word(sender=0, to=2, number=ping.number, answer=True, neighbours=near), (HOST, 0), 0.1, 0)
    assert links.addresses.keys() == {0, 3}, "5 is no neighbour of 2"


@pytest.mark.parametrize("host", ["a.name.example", "10.0.0.256", "", "\u00e9" * 64])
def test_a_neighbour_is_told_by_address_so_that_no_agent_waits_for_a_name(host: str) -> None:
    near = tuple(Neighbour.model_construct(pod=1, host=text, port=4) for text in (host, HOST, "fe80::1%eth0"))
    told, *kept = (
        sealed(KEY, Word.model_construct(sender=0, to=2, number=1, answer=True, neighbours=(n,))) for n in near
    )
    assert opened(KEY, told) is None
    assert all(opened(KEY, raw) is not None for raw in kept)


def test_agents_ping_over_the_network_and_end_at_once_with_a_dead_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kuangchao_worker.agent.pings.TURN_SECONDS", 0.01)
    reply = JoinReply(
        ready=True, attempt=1, master_host="127.0.0.1", master_port=free_port(), store_prefix="kc/1/secret"
    )

    async def run() -> dict[str, str]:
        ticks = count()
        pods = [Pings(pod, 2, reply, lambda: float(next(ticks))) for pod in range(2)]
        tasks = [asyncio.create_task(pod.run()) for pod in pods]
        async with asyncio.timeout(100):
            while "linkLatencySeconds" not in (told := pods[0].metrics):
                await asyncio.sleep(0.01)
            tasks[1].cancel()
            await asyncio.wait(tasks[1:])
            assert not tasks[0].done()
            tasks[0].cancel()
            await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert pods[1].metrics == {}
        return told

    told = asyncio.run(run())
    assert 0 < float(told["linkLatencySeconds"]) < PATIENCE
    assert told["worstLink"] == "pods 0-1"


def test_a_port_in_use_costs_the_figures_only(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        reply = JoinReply(ready=True, attempt=1, master_host="127.0.0.1", master_port=taken.getsockname()[1])
        pings = Pings(0, 2, reply)
        asyncio.run(pings.run())
    assert pings.metrics == {}
    assert "links between pods are not measured" in caplog.text
