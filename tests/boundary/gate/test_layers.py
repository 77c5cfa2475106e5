"""Tokens of the control plane's own layers."""

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.execution import LaunchRequest
from kuangchao_contracts.run import Ack, Empty
from tests.boundary.gate.plane import JOB, World


async def test_layer_tokens(world: World) -> None:
    launch = LaunchRequest(attempt=1, incarnation=0, plan_hash="0" * 64)
    for _ in range(2):
        token = await world.tokens.token(Layer.EXECUTION, JOB, "execution.launch")
        assert await world.gate.call(token, "execution.launch", JOB.resource, launch) == Ack(detail="launched")
    with pytest.raises(e.ReplayedTokenError):
        await world.gate.call(token, "execution.launch", JOB.resource, launch)
    before = await world.tokens.token(Layer.EXECUTION, JOB, "execution.launch")
    world.fence.set(JOB.uid, 2)
    with pytest.raises(e.StaleEpochError):
        await world.gate.call(before, "execution.launch", JOB.resource, launch)
    world.fence.close(JOB.uid)
    reclaim = await world.tokens.token(Layer.EXECUTION, JOB, "execution.reclaim")
    assert isinstance(await world.gate.call(reclaim, "execution.reclaim", JOB.resource, Empty()), Ack)
    leases = [await world.tokens.token(Layer.EXECUTION, JOB, "strategy.plan") for _ in range(2)]
    assert leases[0] == leases[1]
    world.tokens.forget(JOB.uid)
    assert await world.tokens.token(Layer.EXECUTION, JOB, "strategy.plan") != leases[0]
    with pytest.raises(e.PermissionDeniedError):
        await world.tokens.token(Layer.STATE, JOB, "strategy.plan")
