"""Scripts written for torchrun find what it would give them, by the word of the torch that is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kuangchao_contracts.run import JoinReply
from kuangchao_worker.agent.environment import places, script, torchrun_environment
from tests.unit.worker.fakegate import Cluster, make_launch, make_plan

SCRIPT = Path(__file__).with_name("torchrun_script.py")
OF_THE_LAUNCHER = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""What torchrun tells its own agent; ranks only inherit it."""
OURS = {"KUANGCHAO_CHECKPOINT_DIR", "KUANGCHAO_MONITOR"}
DIFFERENT = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "LC_CTYPE"}
"""Where the value is that of the run."""
DUMP = """
import json, os, sys
folder = sys.argv[1]
with open(f"{folder}/{os.environ['RANK']}.json", "w") as file:
    json.dump([dict(os.environ), sys.argv[2:]], file)
"""
ARGUMENT = "device=${local_rank} cost=$5"


def test_environment_and_arguments_are_those_of_torchrun(tmp_path: Path) -> None:
    dump = tmp_path / "dump.py"
    dump.write_text(DUMP)
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [str(dump), str(tmp_path), ARGUMENT]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([sys.executable, *torchrun, *command], env=base, check=True, timeout=90, capture_output=True)
    launch = make_launch(make_plan(2, per_pod=2), None, command=tuple(command))
    reply = JoinReply(ready=True, attempt=1, master_host="h", master_port=1)
    for place in places(launch.plan, 0):
        theirs, arguments = json.loads((tmp_path / f"{place.rank}.json").read_text())
        ours = torchrun_environment(base, place, reply, launch, "/run/m", "/scratch")
        assert set(ours) - OURS == set(theirs) - OF_THE_LAUNCHER - {"LC_CTYPE"}
        assert {k: v for k, v in ours.items() if k not in OURS | DIFFERENT} == {
            k: v for k, v in theirs.items() if k not in OF_THE_LAUNCHER | DIFFERENT
        }
        assert script(command, ours)[-1:] == arguments


async def test_unmodified_script_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    folder = "$(KUANGCHAO_CHECKPOINT_DIR)"
    options = ("--output", folder, "--local-rank", "${local_rank}", "--fail-fresh-at", "3")
    launch = make_launch(make_plan(2, per_pod=2), None, command=(str(SCRIPT), *options), checkpoint_path="job-1")
    async with Cluster(tmp_path, launch, restarts=1) as cluster:
        await cluster.start_agents()
        assert await cluster.finish() == [0], cluster.logs()
        ends = {b.join.attempt: {r.error_kind for r in b.ranks if r.exit_code} for b in cluster.control.beats}
    assert ends[1] == {"RuntimeError"}
    assert ends[2] == set()
    assert json.loads((tmp_path / "checkpoints/job-1/result.json").read_text()) == {"first": 4, "same": True}
