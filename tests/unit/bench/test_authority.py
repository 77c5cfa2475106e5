"""The suite `authority`: it runs, and every figure that has a target is explained and was published."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bench import authority

PAGE = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()


def test_figures_have_the_published_names_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    def trainer() -> Callable[[], object]:
        return lambda: steps.append(1)

    monkeypatch.setattr(authority, "_trainer", trainer)
    with authority._side() as side:
        figures = [
            *authority._hit(side, 20),
            *authority._miss(side, 5),
            *authority._authorise(side, 20),
            *authority._call(side, 20),
            *authority._training(side, 4),
        ]
        lines = [len(path.read_text().splitlines()) for path in side.directory.glob("t*/*.jsonl")]
    assert len(steps) == 4
    assert sorted(lines) == [2, 40], "warm-up and calls of the tight loop; every second training step"
    assert len({figure.name for figure in figures}) == len(figures)
    targets = {figure.name: figure.wanted for figure in figures if figure.target is not None}
    assert set(targets.values()) == {"<= 50 us", "<= 30 us", "<= 10 us", "<= 1 %"}
    for name, wanted in targets.items():
        concept = name.removesuffix(", p99").removesuffix(", median")
        assert any(concept in line and wanted in line for line in PAGE.splitlines()), name
