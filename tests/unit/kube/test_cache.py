"""The cache takes lists and watches in any order and tells of changes once."""

from typing import Any

import pytest

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_operator.kube.cache import Cache, Change
from kuangchao_operator.kube.pools import pool_facts
from tests.unit.kube.bodies import UID, descriptor, job, node, pod, pool


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def changes(cache: Cache) -> list[Change]:
    seen: list[Change] = []
    cache.listen(seen.append)
    return seen


def test_an_old_event_does_not_undo_a_newer_one(cache: Cache) -> None:
    cache.see("Pod", pod(version=5, phase="Failed"))
    cache.see("Pod", pod(version=4, phase="Running"))
    assert [p.fact.phase for p in cache.pods_of(UID)] == ["Failed"]


def test_versions_are_numbers_not_texts(cache: Cache) -> None:
    cache.see("Pod", pod(version=10, phase="Failed"))
    cache.see("Pod", pod(version=9, phase="Running"))
    assert [p.fact.phase for p in cache.pods_of(UID)] == ["Failed"]


def test_a_server_whose_versions_are_no_numbers_is_refused(cache: Cache) -> None:
    body = pod()
    body["metadata"]["resourceVersion"] = "abc"
    with pytest.raises(KuangchaoError, match="abc"):
        cache.see("Pod", body)


def test_a_late_event_does_not_bring_a_deleted_object_back(cache: Cache) -> None:
    cache.see("Pod", pod(version=1))
    cache.forget("Pod", pod(version=3))
    cache.see("Pod", pod(version=2))
    assert cache.pods_of(UID) == []


def test_an_object_made_anew_under_the_same_name_is_seen(cache: Cache) -> None:
    cache.forget("Pod", pod(version=3))
    cache.see("Pod", pod(version=4))
    assert len(cache.pods_of(UID)) == 1


def test_a_list_drops_what_the_watch_missed_but_not_what_is_newer(cache: Cache, changes: list[Change]) -> None:
    cache.see("Pod", pod("gone", version=2))
    cache.see("Pod", pod("new", version=9))
    changes.clear()
    cache.sweep("Pod", [pod("kept", version=3)], version=5)
    assert sorted(p.fact.name for p in cache.pods_of(UID)) == ["kept", "new"]
    assert [(c.before is not None, c.after is not None) for c in changes] == [(False, True), (True, False)]


def test_an_event_without_news_is_told_to_nobody(cache: Cache, changes: list[Change]) -> None:
    cache.see("Node", node(version=1))
    cache.see("Node", node(version=2))
    cache.see("Node", node(version=3, ready="Unknown"))
    assert len(changes) == 2


def test_an_object_that_is_not_understood_does_not_stop_the_others(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    strange: dict[str, Any] = job("strange", spec={"fromTheFuture": 1})
    cache.sweep("TrainingJob", [strange, job("plain")], version=5)
    assert [r.job.metadata.name for r in cache.jobs] == ["plain"]
    assert "ns/strange is not understood: spec.fromTheFuture" in caplog.text


def test_jobs_are_found_by_pool_and_pods_by_job(cache: Cache) -> None:
    cache.see("TrainingJob", job("a", pool="one"))
    cache.see("TrainingJob", job("b", pool="two"))
    cache.see("Pod", pod())
    assert [r.job.metadata.name for r in cache.jobs_in("one")] == ["a"]
    assert list(cache.pods_by_job()) == [UID]
    cache.missing("TrainingJob", "a", "ns")
    cache.forget("Pod", pod(version=2))
    assert cache.jobs_in("one") == []
    assert cache.pods_by_job() == {}


def test_the_newest_descriptor_of_a_node_is_in_force(cache: Cache) -> None:
    cache.see("ResourceDescriptor", descriptor(generation=2, version=1, cpus=8))
    cache.see("ResourceDescriptor", descriptor(generation=1, version=2, cpus=4))
    assert cache.newest_descriptors()["node-1"].generation == 2


def test_a_pool_counts_ready_nodes_of_its_selector(cache: Cache) -> None:
    cache.see("ResourcePool", pool(nodeSelector={"pool": "a"}))
    cache.see("Node", node("in", pool="a"))
    cache.see("Node", node("lost", ready="Unknown", pool="a"))
    cache.see("Node", node("silent", pool="a"))
    cache.see("Node", node("out", pool="b"))
    for name in ("in", "lost", "out"):
        cache.see("ResourceDescriptor", descriptor(name, cpus=4))
    facts = pool_facts("p", cache)
    assert facts is not None
    assert {n.node: (n.devices, n.ready) for n in facts.nodes} == {
        "in": (4, True), "lost": (4, False), "silent": (0, True),
    }  # fmt: skip
    assert sum(s.nodes for s in facts.shapes) == 2
    assert pool_facts("other", cache) is None


def test_devices_count_as_used_while_pods_exist_even_if_the_status_forgot_them(cache: Cache) -> None:
    cache.see("ResourcePool", pool())
    cache.see("TrainingJob", job())
    cache.see("Pod", pod("j-0", index=0))
    cache.see("Pod", pod("j-1", index=1))
    facts = pool_facts("p", cache)
    assert facts is not None
    assert [(s.node, s.devices) for c in facts.claims for s in c.shares] == [("node-1", 2)]
