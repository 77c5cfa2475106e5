"""What a rank process is started with: program and environment. Pure.

`command` jobs find exactly what torchrun would give them, so scripts written for it run unmodified.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from string import Template

from kuangchao_contracts.plan import ParallelPlan
from kuangchao_contracts.run import JoinReply, LaunchSpec
from kuangchao_worker.reports import CHECKPOINT_VARIABLE, SOCKET_VARIABLE


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands. Ranks are numbered by pod index, so rank 0 is in pod 0, which hosts the store."""

    rank: int
    local_rank: int
    local_world_size: int
    pod_index: int
    pods: int
    world_size: int


def places(plan: ParallelPlan, pod_index: int) -> list[Place]:
    """The ranks of a pod."""
    first = pod_index * plan.per_pod
    count = min(plan.per_pod, plan.world_size - first)
    return [Place(first + i, i, count, pod_index, plan.pods, plan.world_size) for i in range(count)]


def cold_rank(assignment: str) -> list[str]:
    """The command line of a rank of ours that is not forked."""
    return [sys.executable, "-m", "kuangchao_worker.rank", assignment]


def script(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command line of a `command` rank: what follows torchrun.

    As with torchrun, `${local_rank}` in an argument is the local rank. `$(KUANGCHAO_CHECKPOINT_DIR)`, written as
    Kubernetes writes variables, is for scripts that take their folder as an option.
    """
    directory = environment[CHECKPOINT_VARIABLE]
    filled = (Template(part).safe_substitute(local_rank=environment["LOCAL_RANK"]) for part in command)
    return [sys.executable, "-u", *(part.replace(f"$({CHECKPOINT_VARIABLE})", directory) for part in filled)]


def torchrun_environment(
    base: Mapping[str, str], place: Place, reply: JoinReply, launch: LaunchSpec, monitor: str, directory: str
) -> dict[str, str]:
    """Environment of a `command` rank."""
    size, local = str(place.world_size), str(place.local_rank)
    return {
        **base,
        "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
        "MASTER_ADDR": reply.master_host,
        "MASTER_PORT": str(reply.master_port),
        "RANK": str(place.rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.pod_index),
        "GROUP_WORLD_SIZE": str(place.pods),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": launch.job_uid,
        "TORCHELASTIC_RESTART_COUNT": str(reply.attempt - 1),
        # budgets are the operator's; scripts read this only to print it
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # the store at MASTER_ADDR:MASTER_PORT is served by the agent of pod 0, anew for each attempt
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # where a script decorated with torch's `record` leaves its error; it raises it all the same
        "TORCHELASTIC_ERROR_FILE": str(PurePath(monitor).with_name(f"error-{place.rank}.json")),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        CHECKPOINT_VARIABLE: directory,
        SOCKET_VARIABLE: monitor,
    }
