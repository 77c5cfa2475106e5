"""Marks every test with its tier, which is the folder it lies in: `pytest -m unit`, `-m api`. No test fails for the
speed of the machine."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TIERS = ("unit", "boundary", "local", "api", "e2e", "integrations", "gpu")
HERE = Path(__file__).parent
HANGS_AFTER = {"unit": 400, "boundary": 400, "local": 900, "api": 900}
"""Seconds for one test, its fixtures included: it bounds a hang and is no claim about speed."""
# what the machine's profile says besides, such as that of a CI run, stays
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # other folders of tests, such as the embedded cluster's own, mark theirs themselves
        tier = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else None
        if tier in TIERS:
            item.add_marker(tier)
        if tier in HANGS_AFTER:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER[tier]))
