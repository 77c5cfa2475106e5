"""The launcher makes a gang as the status has placed it, or nothing."""

from typing import Any

import pytest

from kuangchao_contracts.api.trainingjob import NodeShare
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.kube.launcher import KubeLauncher
from tests.unit.execution.world import World, make_job, make_pool


class Untouchable:
    """Fails the test when anything is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


class Plans:
    """The plan of the world's job."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def plan(self, job: Any) -> Any:
        return self._world.plan


@pytest.mark.parametrize(
    "shares",
    [
        (),
        (NodeShare(node="a", devices=2, pods="0-1"),),
        (NodeShare(node="a", devices=2, pods="0-1"), NodeShare(node="b", devices=1, pods="3")),
        (NodeShare(node="a", devices=3, pods="0-2"), NodeShare(node="b", devices=2, pods="3-4")),
    ],
    ids=["nothing", "half", "gap", "too many"],
)
async def test_a_placement_that_is_not_the_whole_gang_makes_no_pod(shares: tuple[NodeShare, ...]) -> None:
    """kubernetes-sigs/kueue#6913: an empty assignment was taken for a valid one."""
    world = World(make_job(count=4), make_pool({"a": 2, "b": 2}))
    world.settle()
    job = world.job.model_copy(update={"status": world.status.replace(allocation=shares)})
    nothing: Any = Untouchable()
    launcher = KubeLauncher(nothing, nothing, Plans(world), nothing, nothing, nothing, nothing, 64)
    with pytest.raises(InvalidInputError, match="must place pods 0 to 3"):
        await launcher.launch(job, 1, 0)
