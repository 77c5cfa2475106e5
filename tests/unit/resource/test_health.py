"""Verdicts on readings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kuangchao_contracts.api.resourcepool import HealthThresholds
from kuangchao_contracts.descriptor import DeviceKind
from kuangchao_operator.layers.resource.health import judge, strictest
from kuangchao_operator.layers.resource.model import DeviceReading

LIMITS = HealthThresholds()


def reading(**changes: Any) -> DeviceReading:
    return DeviceReading.model_validate({"index": 0, "uuid": "u", "kind": DeviceKind.GPU, "model": "m", **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"temperature_celsius": 95, "uncorrectable_ecc": 0, "remap_pending": False}, None),
        ({"temperature_celsius": 96}, "temperature above 95 C"),
        ({"uncorrectable_ecc": 1}, "uncorrectable ECC errors above 0 since the driver was loaded"),
        ({"remap_pending": True}, "row remapping pending: the device needs a reset"),
        ({"remap_failed": True, "uncorrectable_ecc": 9}, "row remapping failed: the device must be replaced"),
        ({"partitioned": True}, "split into MIG instances: not a whole device"),
        ({"fault": "GPU is lost", "temperature_celsius": 200}, "GPU is lost"),
    ],
)
def test_the_gravest_fault_is_the_reason(changes: dict[str, Any], reason: str | None) -> None:
    device = judge(reading(**changes), LIMITS)
    assert (device.healthy, device.reason) == (reason is None, reason)


@given(first=st.integers(96, 150), second=st.integers(96, 150))
def test_a_reason_does_not_change_with_every_degree(first: int, second: int) -> None:
    assert judge(reading(temperature_celsius=first), LIMITS) == judge(reading(temperature_celsius=second), LIMITS)


def test_the_strictest_pool_decides_each_limit() -> None:
    hot = HealthThresholds(max_temperature_celsius=100, max_uncorrectable_ecc=0)
    patient = HealthThresholds(max_temperature_celsius=80, max_uncorrectable_ecc=7)
    assert strictest([hot, patient]) == HealthThresholds(max_temperature_celsius=80, max_uncorrectable_ecc=0)
    assert strictest([patient]) == patient
    assert strictest([]) == HealthThresholds()
