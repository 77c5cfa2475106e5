"""T14: the operator dies at each point of a control call; the next one tells what came of it, once and truly."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kuangchao_contracts.audit import AuditQuery, AuditRecord, Decision, Stage
from kuangchao_operator.app.recovery import settle
from kuangchao_operator.audit.query import query
from kuangchao_operator.audit.sink import StoreSink
from tests.boundary.threats.dying import COMMITTED, OPERATIONS, PODS, POINTS, World
from tests.unit.authority.kit import NOW, Clock

Ended = tuple[Path, dict[str, int]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Directories that the dead have left, and how each of them died."""
    root = tmp_path_factory.mktemp("dead")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.boundary.threats.dying", str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


def happened(world: World, op: str) -> bool:
    """Whether the whole operation is so: looked at here, and not by the code that is tested."""
    if op == "execution.launch":
        return len(world.pods()) == PODS
    if op == "execution.stop":
        return all(pod["deleting"] for pod in world.pods())
    if op == "execution.reclaim":
        return not world.pods() and not world.service()
    status = world.job().status
    return status is not None and [entry.path for entry in status.checkpoints] == [COMMITTED]


def untouched(directory: Path, op: str) -> bool:
    """Whether nothing at all was done."""
    there, before = World(directory), World(directory / "before")
    (directory / "before").mkdir(exist_ok=True)
    before.begin(op)
    return (there.pods(), there.service(), there.job()) == (before.pods(), before.service(), before.job())


async def restarted(directory: Path) -> list[AuditRecord]:
    """The trail after another operator came up."""
    sink = StoreSink(directory / "audit", Clock(NOW + 5))
    await sink.start()
    await settle(sink, World(directory), Clock(NOW + 5).moment)
    await sink.close()
    return [
        item.record
        for item in query(directory / "audit", AuditQuery()).records
        if item.record.stage is not Stage.SYSTEM
    ]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("op", OPERATIONS)
async def test_every_intent_has_one_result_that_is_the_truth(ended: Ended, op: str, point: str) -> None:
    root, codes = ended
    directory = root / op / point
    assert codes[f"{op} {point}"] == (0 if point == "never" else -signal.SIGKILL)
    done = happened(World(directory), op)
    assert done == (point in ("after action", "before result", "never"))
    records = await restarted(directory)
    if point == "after verify":
        assert records == []
        assert untouched(directory, op), "no action without an intent"
        return
    intent, result = records
    assert (intent.stage, result.stage) == (Stage.INTENT, Stage.RESULT)
    assert intent.opid == result.opid
    assert result.decision is (Decision.ALLOW if done else Decision.ERROR)
    assert result.reason == ("" if point == "never" else "Recovered")
    assert await restarted(directory) == records, "another start adds nothing"
