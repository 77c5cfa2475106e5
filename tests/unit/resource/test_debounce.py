"""When a change is published: bad news at once, other news when steady, recovery after a quiet time."""

from tests.unit.resource.test_decide import NOW

from kuangchao_contracts.descriptor import Device, DeviceKind, HostCapacity, NodeDescriptor
from kuangchao_operator.layers.resource.debounce import RECOVERY_CHECKS, STEADY_CHECKS, Pending, observe
from kuangchao_operator.layers.resource.decide import successor
from kuangchao_operator.layers.resource.model import Found


def found(*healthy: bool, cpu: int = 1000) -> Found:
    return Found(
        node="n",
        host=HostCapacity(allocatable_milli_cpu=cpu, allocatable_memory_bytes=1),
        devices=tuple(
            Device(index=i, uuid=f"GPU-{i}", kind=DeviceKind.GPU, model="m", healthy=ok, reason=None if ok else "lost")
            for i, ok in enumerate(healthy)
        ),
    )


def published(what: Found) -> NodeDescriptor:
    descriptor = successor(None, what, NOW)
    assert descriptor is not None
    return descriptor


def checks_until_published(previous: NodeDescriptor, what: Found) -> int:
    pending: Pending | None = None
    for check in range(1, 100):
        publish, pending = observe(previous, what, pending)
        if publish:
            return check
    raise AssertionError("never published")


def test_the_first_finding_is_published_at_once() -> None:
    assert observe(None, found(True), None) == (True, None)


def test_no_change_is_never_published_and_forgets_what_was_pending() -> None:
    assert observe(published(found(True)), found(True), Pending(found=found(True, cpu=5))) == (False, None)


def test_a_broken_or_vanished_device_is_published_at_once() -> None:
    before = published(found(True, True))
    assert observe(before, found(True, False), None) == (True, None)
    assert observe(before, found(True), None) == (True, None)


def test_bad_news_is_not_held_back_by_a_recovery() -> None:
    assert observe(published(found(True, False)), found(False, True), None) == (True, None)


def test_other_changes_must_be_seen_again() -> None:
    assert checks_until_published(published(found(True)), found(True, cpu=900)) == STEADY_CHECKS
    assert checks_until_published(published(found(True)), found(True, True)) == STEADY_CHECKS


def test_a_device_must_look_well_for_a_while() -> None:
    assert checks_until_published(published(found(False)), found(True)) == RECOVERY_CHECKS


def test_a_change_that_changes_starts_anew() -> None:
    before = published(found(True))
    _, pending = observe(before, found(True, cpu=900), None)
    publish, pending = observe(before, found(True, cpu=800), pending)
    assert not publish
    assert pending is not None
    assert pending.checks == 1
