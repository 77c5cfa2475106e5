"""When a change is worth a new descriptor: bad news at once, other news when it has been seen twice, and a device that
looks well again only after a quiet time, however often its agent restarts. Pure."""

from kuangchao_contracts.base import Contract
from kuangchao_contracts.descriptor import NodeDescriptor
from kuangchao_operator.layers.resource.model import Found

STEADY_CHECKS = 2
RECOVERY_CHECKS = 6
"""At one check in 10 s a device must look well for a minute."""


class Pending(Contract):
    """A change that waits: what was found, and in how many checks on end."""

    found: Found
    checks: int = 1


def observe(previous: NodeDescriptor | None, found: Found, pending: Pending | None) -> tuple[bool, Pending | None]:
    """Whether to publish `found` now, and what to remember until the next check."""
    if previous is None or worse(previous, found):
        return True, None
    if _same(previous, found):
        return False, None
    checks = pending.checks + 1 if pending is not None and pending.found == found else 1
    needed = RECOVERY_CHECKS if _recovers(previous, found) else STEADY_CHECKS
    if checks >= needed:
        return True, None
    return False, Pending(found=found, checks=checks)


def worse(previous: NodeDescriptor, found: Found) -> bool:
    """Whether a device that was healthy is broken or gone."""
    well = {device.uuid for device in found.devices if device.healthy}
    return any(device.healthy and device.uuid not in well for device in previous.devices)


def _recovers(previous: NodeDescriptor, found: Found) -> bool:
    ill = {device.uuid for device in previous.devices if not device.healthy}
    return any(device.healthy and device.uuid in ill for device in found.devices)


def _same(previous: NodeDescriptor, found: Found) -> bool:
    return all(getattr(previous, name) == getattr(found, name) for name in Found.model_fields)
