"""Runs by turns: never both at once, each as many steps as the other, and nobody waits after the last block."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bench.figures import Pair
from bench.turns import WARM_UP, Team, Turn, referee

BLOCK = 3
COUNT = 4


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        yield psutil.Process(child.pid)
        child.kill()


def played(path: Path, process: psutil.Process) -> tuple[list[str], list[Pair]]:
    """What two sides of two ranks did, in order, and how it was measured."""
    steps: list[str] = []

    def rank(side: str, cpu: float) -> None:
        clock = iter(cpu * n for n in range(100))
        turn = Turn(str(path), side, BLOCK, lambda: next(clock))
        for _ in range(WARM_UP + BLOCK * COUNT + 1):
            turn.tick()
            steps.append(side)

    with referee(path, BLOCK) as judge:
        ranks = [threading.Thread(target=rank, args=a) for a in (("ours", 6.0), ("theirs", 3.0)) for _ in range(2)]
        for thread in ranks:
            thread.start()
        found = judge.pairs(Team(2, process), Team(2, process), COUNT)
        for thread in ranks:
            thread.join(10)
    return steps, found


def test_sides_train_by_turns_and_who_goes_first_alternates(tmp_path: Path, process: psutil.Process) -> None:
    steps, found = played(tmp_path / "turns", process)
    warm = 2 * 2 * WARM_UP
    order = ["ours", "theirs", "theirs", "ours"] * (COUNT // 2)
    timed = steps[warm : warm + 2 * 2 * BLOCK * COUNT]
    assert timed == [side for side in order for _ in range(2 * BLOCK)]
    assert len(found) == COUNT
    assert {pair.ours.cpu for pair in found} == {6.0 / BLOCK}
    assert {pair.theirs.cpu for pair in found} == {3.0 / BLOCK}


def test_the_side_that_waits_is_stopped_and_continued_at_the_end(tmp_path: Path, process: psutil.Process) -> None:
    played(tmp_path / "turns", process)
    assert process.status() != psutil.STATUS_STOPPED


def test_a_rank_that_ends_early_is_an_error(tmp_path: Path, process: psutil.Process) -> None:
    with referee(tmp_path / "turns", BLOCK) as judge:
        for side in ("ours", "theirs"):
            turn = Turn(str(tmp_path / "turns"), side, BLOCK)
            for _ in range(WARM_UP):
                turn.tick()
            turn.close()
        with pytest.raises(RuntimeError, match="a rank ended before its last block"):
            judge.pairs(Team(1, process), Team(1, process), 1)
