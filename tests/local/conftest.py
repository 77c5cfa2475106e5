"""Runs that are ended with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.gang import Gang
from tests.local.runs import Run


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
def gang() -> Iterator[Gang]:
    """Rank processes that serve one case after the other."""
    pool = Gang()
    yield pool
    pool.close()
