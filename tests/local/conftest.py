"""Runs that are ended with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.gang import Gang
from tests.local.runs import KILLER, Run, manifest


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs, each in a folder of its own."""
    runs: list[Run] = []

    def make(
        job: dict[str, Any] | Path, *arguments: str, files: dict[str, str] | None = None, packages: Path | None = None
    ) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        runs.append(Run(folder, job, arguments or ("-o", "json"), packages))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Two runs of digits that have ended well, for all tests that look at what they left: `calm`, and `killed`, whose
    rank 1 killed itself in step 27. Whoever changes a file of theirs does so in a copy.
    """
    folder = tmp_path_factory.mktemp("digits")
    jobs = {"calm": manifest("digits"), "killed": manifest("digits", task="mytask:killer")}
    runs = {}
    for name, job in jobs.items():
        (folder / name).mkdir()
        (folder / name / "mytask.py").write_text(KILLER)
        runs[name] = Run(folder / name, job)
    try:
        for run in runs.values():
            assert run.end() == 0, run.err + run.explain()
        yield runs
    finally:
        for run in runs.values():
            run.close()


@pytest.fixture(scope="session")
def gang() -> Iterator[Gang]:
    """Rank processes that serve one case after the other."""
    pool = Gang()
    yield pool
    pool.close()
