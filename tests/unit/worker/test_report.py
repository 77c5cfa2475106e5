"""What scripts say of themselves reaches the agent: seldom, whole at the end, bounded, and never at their cost."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker import report
from kuangchao_worker.agent.views import RankView
from kuangchao_worker.pod.channel import MAX_MESSAGE, RankMessage
from kuangchao_worker.reports import MAX_NAMES, REPORT_SECONDS, Report


class Ear:
    """The agent's end of the channel."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(self.path)

    def heard(self) -> list[RankMessage]:
        found = []
        while True:
            try:
                found.append(RankMessage.model_validate_json(self.socket.recv(MAX_MESSAGE)))
            except BlockingIOError:
                return found


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    ear = Ear(tmp_path / "m.sock")
    yield ear
    ear.socket.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told(ear: Ear, clock: Clock) -> Iterator[Report]:
    told = Report({"KUANGCHAO_MONITOR": ear.path, "RANK": "2", "KUANGCHAO_CHECKPOINT_DIR": "/c/job"}, clock)
    yield told
    if told._sender is not None:
        told._sender.close()


def test_steps_are_thinned_and_the_last_one_is_said_at_once(ear: Ear, told: Report) -> None:
    for step in range(1, 21):
        told.progress(step, 20, loss=1 / step)
    heard = ear.heard()
    assert [(m.rank, m.step, m.total) for m in heard] == [(2, 1, 20), (2, 20, 20)]
    assert heard[-1].metrics["loss"] == "0.05"


def test_what_was_held_back_goes_with_the_next_message(ear: Ear, told: Report, clock: Clock) -> None:
    told.progress(1)
    told.progress(2, accuracy=Decimal("0.5"))
    clock.now += 2 * REPORT_SECONDS
    told.metrics(loss=3)
    heard = ear.heard()
    assert [(m.step, m.metrics) for m in heard] == [(1, {}), (2, {"accuracy": "0.5", "loss": "3"})]


def test_full_queue_costs_no_time_and_no_last_word(ear: Ear, told: Report, clock: Clock) -> None:
    for step in range(1, 2_000):
        clock.now += 2 * REPORT_SECONDS
        told.progress(step, 2_000)
    told.progress(2_000, 2_000)
    backlog = ear.heard()
    assert 0 < len(backlog) < 2_000, "the agent did not read, so its queue was full"
    assert told._sender is not None
    told._sender.close()
    assert [m.step for m in ear.heard()] == [2_000]


def test_agent_that_is_gone_is_no_error(ear: Ear, told: Report, clock: Clock) -> None:
    ear.socket.close()
    for step in range(3):
        clock.now += 2 * REPORT_SECONDS
        told.progress(step)


def test_number_of_names_is_bounded(ear: Ear, told: Report, clock: Clock) -> None:
    view = RankView(2)
    for number in range(100):
        clock.now += 2 * REPORT_SECONDS
        told.metrics(**{f"layer{number}/norm": number})
        for message in ear.heard():
            view.hear(message)
    assert len(view.metrics) == MAX_NAMES


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda r: r.progress(-1), "step"),
        (lambda r: r.progress(1.5), "step"),
        (lambda r: r.progress(2**53 + 1), "step"),
        (lambda r: r.progress(1, 0), "total"),
        (lambda r: r.progress(1, loss="much"), "metrics.loss"),
        (lambda r: r.metrics(**{"a b": 1}), "metrics"),
        (lambda r: r.metrics(**{"\x1b[2J": 1}), "metrics"),
        (lambda r: r.metrics(**{"x" * 49: 1}), "metrics"),
        (lambda r: r.metrics(step=1), "metrics"),
        (lambda r: r.metrics(loss=torch.ones(2)), "metrics.loss"),
        (lambda r: r.section(None), "section"),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_wrong_arguments_are_named_everywhere(
    ear: Ear, told: Report, inside: bool, call: Callable[[Any], None], field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call(told if inside else Report({}))
    assert caught.value.field == field
    assert ear.heard() == []


def test_outside_nothing_happens(told: Report) -> None:
    outside = Report({})
    outside.progress(1, 2, loss=1)
    outside.metrics(loss=1)
    assert outside._sender is None
    assert outside.checkpoint_directory() is None
    assert told.checkpoint_directory() == Path("/c/job")
    assert report.checkpoint_directory() is None


def test_last_word_of_a_process_is_said_when_it_ends(ear: Ear, tmp_path: Path) -> None:
    script = "from kuangchao_worker import report\nfor step in range(1, 6): report.progress(step, loss=step)"
    environment = {"PYTHONPATH": ":".join(sys.path), "KUANGCHAO_MONITOR": ear.path, "RANK": "0"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
    assert [(m.step, m.metrics["loss"]) for m in ear.heard()] == [(1, "1"), (5, "5")]


def test_import_needs_the_standard_library_only() -> None:
    script = (
        "import sys; from kuangchao_worker import report\n"
        "known = sys.stdlib_module_names | {'kuangchao_worker', 'kuangchao_contracts'}\n"
        "print({name.split('.')[0] for name in sys.modules} - known - {'__main__'})"
    )
    command = [sys.executable, "-S", "-c", script]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_a_section_is_said_at_once_and_ends_with_the_next_step(told: Report, ear: Ear, clock: Clock) -> None:
    told.progress(3)
    told.section("evaluate")
    told.metrics(accuracy=0.5)
    clock.now += 2 * REPORT_SECONDS
    told.metrics(accuracy=0.6)
    told.progress(4)
    assert [(m.step, m.section) for m in ear.heard()] == [
        (3, "train"), (3, "evaluate"), (3, "evaluate"), (4, "train")
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "1st", "an export", "x" * 33])
def test_a_section_has_a_name(told: Report, name: str) -> None:
    with pytest.raises(InvalidInputError, match="section"):
        told.section(name)


def test_a_forked_process_says_nothing_of_its_parent(told: Report, ear: Ear, clock: Clock) -> None:
    """Workers of a DataLoader live on while the rank evaluates, and begin with a copy of what it has not said yet."""
    told.progress(3, loss=1)
    told.progress(4, loss=2)
    pid = os.fork()
    if pid == 0:
        clock.now += 2 * REPORT_SECONDS
        told.metrics(read=7)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    told.section("evaluate")
    view = RankView(2)
    heard = ear.heard()
    for message in heard:
        view.hear(message)
    assert [m.metrics for m in heard] == [{"loss": "1"}, {"read": "7"}, {"loss": "2"}]
    assert (view.section, [m.section for m in heard]) == ("evaluate", ["train", None, "evaluate"])


def test_a_rank_that_is_no_number_is_no_error(ear: Ear, clock: Clock) -> None:
    Report({"KUANGCHAO_MONITOR": ear.path, "RANK": "first"}, clock).progress(1)
    assert ear.heard() == []


def test_the_nearest_step_is_named(told: Report) -> None:
    with pytest.raises(InvalidInputError, match=r"step=7\.6: is no whole number; nearest legal value: 8"):
        told.progress(7.6)  # type: ignore[arg-type]  # planted
