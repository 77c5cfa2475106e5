"""One world for each file of cases: making keys and stores anew for each of thousands would take all the time."""

from collections.abc import Iterator

import pytest

from tests.boundary.authority.world import World, running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("authority")) as world:
        yield world
