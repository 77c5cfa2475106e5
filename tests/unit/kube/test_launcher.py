"""The launcher makes a gang as the status has placed it, or nothing; and how its pods get their tokens."""

from typing import Any

import pytest

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import NodeShare
from kuangchao_contracts.errors import InvalidInputError, UnavailableError
from kuangchao_contracts.wire import TokenBundle
from kuangchao_operator.gate.minting import PodRef
from kuangchao_operator.kube.cache import Cache
from kuangchao_operator.kube.launcher import KubeLauncher
from kuangchao_operator.layers.execution.pods import PodSettings
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


class Hands:
    """Writer, trust, tokens and settings of a launcher: notes what it makes."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.marked: list[str] = []
        self.minted: list[tuple[int, list[PodRef]]] = []
        self.away = False

    async def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        self.made.append(body)
        return body

    async def create(self, body: dict[str, Any], owner_uid: str) -> dict[str, Any]:
        self.made.append(body)
        metadata = body["metadata"]
        return {**body, "metadata": {**metadata, "uid": f"uid-of-{metadata['name']}", "resourceVersion": "1"}}

    async def mark(self, kind: str, namespace: str, name: str, **_: Any) -> None:
        self.marked.append(name)

    async def ensure(self, namespace: str) -> None:
        pass

    async def worker_bundles(self, job: Any, attempt: int, pods: list[PodRef]) -> tuple[TokenBundle, ...]:
        self.minted.append((attempt, pods))
        return tuple(TokenBundle(tokens={}, attempt=attempt, expires=1) for _ in pods)

    @property
    def api(self) -> "Hands":
        return self

    async def get(self, path: str) -> dict[str, Any]:
        if self.away:
            raise UnavailableError("the API server is away")
        return {"path": path}

    def kinds(self) -> list[str]:
        return sorted({body["kind"] for body in self.made})


def launcher(world: World, hands: Any, cache: Cache, above: int) -> KubeLauncher:
    settings = PodSettings(gate_url="https://g", image="i", pool=ResourcePoolSpec())
    return KubeLauncher(hands, cache, Plans(world), hands, hands, lambda _: settings, lambda: "r", above)


async def test_small_jobs_have_secrets_and_renewals_name_the_pods_uid() -> None:
    world, hands, cache = World(make_job(count=2), make_pool({"a": 2})), Hands(), Cache()
    world.settle()
    made = launcher(world, hands, cache, 2)
    await made.launch(world.job, 1, 0)
    assert hands.kinds() == ["Pod", "Secret", "Service"]
    assert [pod.uid for pod in hands.minted[0][1]] == [None, None]
    await made.renew_tokens(world.job, 1, 0)
    assert [pod.uid for pod in hands.minted[1][1]] == [f"uid-of-{pod.name}" for pod in hands.minted[1][1]]
    assert len(hands.marked) == 2


async def test_large_jobs_have_no_secret_and_renew_by_themselves() -> None:
    world, hands, cache = World(make_job(count=2), make_pool({"a": 2})), Hands(), Cache()
    world.settle()
    made = launcher(world, hands, cache, 1)
    await made.launch(world.job, 1, 0)
    assert hands.kinds() == ["Pod", "Service"]
    assert all("kuangchao-account" in str(body["spec"]["volumes"]) for body in hands.made if body["kind"] == "Pod")
    assert hands.minted == []
    await made.renew_tokens(world.job, 1, 0)
    assert [len(pods) for _, pods in hands.minted] == [1], "only to see whether anybody gets tokens"
    assert hands.marked == []
    hands.away = True
    with pytest.raises(UnavailableError):
        await made.renew_tokens(world.job, 1, 0)
    await made.launch(world.job, 2, 0)
    assert len(hands.marked) == 2, "a new attempt is written on the pods all the same"
    assert "Secret" not in hands.kinds()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
async def test_pods_keep_the_way_they_started_with(before: int, after: int) -> None:
    world, hands, cache = World(make_job(count=2), make_pool({"a": 2})), Hands(), Cache()
    world.settle()
    await launcher(world, hands, cache, before).launch(world.job, 1, 0)
    changed, minted = launcher(world, hands, cache, after), len(hands.minted)
    await changed.renew_tokens(world.job, 1, 0)
    await changed.launch(world.job, 2, 0)
    assert len(hands.minted) == minted + (2 if before == 2 else 1)
    assert hands.kinds() == (["Pod", "Secret", "Service"] if before == 2 else ["Pod", "Service"])
