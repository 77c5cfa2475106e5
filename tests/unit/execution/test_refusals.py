"""Jobs that cannot run: refused with a reason and numbers, holding nothing, and picked up when the cause is gone."""

from typing import Any

import pytest

from kuangchao_contracts.api.resourcepool import ResourcePoolSpec
from kuangchao_contracts.api.trainingjob import Priority
from kuangchao_contracts.plan import Infeasible
from kuangchao_contracts.reasons import ConditionType as C
from kuangchao_contracts.reasons import Phase, Reason
from kuangchao_operator.layers.execution import limits
from kuangchao_operator.layers.execution.model import Plan
from kuangchao_operator.layers.execution.validate import longest_child_name, nested_launcher, refusal
from tests.unit.execution.world import UID, World, make_job, make_pool


def refused(world: World, reason: Reason, wake: float | None = None) -> str:
    decision = world.settle()
    assert world.status.phase is Phase.STALLED
    assert (world.reason(C.STALLED), world.reason(C.READY)) == (reason, reason)
    assert not world.holds(C.RECONCILING)
    assert decision.wake_after_seconds == wake
    assert world.status.allocation == ()
    assert not world.pods
    writes = world.writes
    world.pass_time(3600)
    world.settle()
    assert world.writes == writes
    return world.condition(C.STALLED).message


def test_infeasible_plan_stalls_with_the_arithmetic_and_does_not_loop() -> None:
    world = World()
    world.infeasible = Infeasible(reason="Infeasible", message="needs 3.2 GiB on each device, pool has 1.0 GiB")
    assert "3.2 GiB" in refused(world, Reason.INFEASIBLE)
    assert world.reason(C.PLANNED) == Reason.INFEASIBLE
    assert len(world.actions(Plan)) == 1
    world.infeasible = None
    world.edit(training={"global_batch": 8})
    world.settle()
    assert world.status.phase is Phase.STARTING


def test_unknown_pool_is_said_and_found_when_it_appears() -> None:
    world = World()
    world.pool = None
    assert refused(world, Reason.POOL_NOT_FOUND) == "spec.pool='pool': there is no such ResourcePool"
    assert world.reason(C.QUOTA_RESERVED) == Reason.POOL_NOT_FOUND
    world.pool = make_pool()
    world.settle()
    assert world.status.phase is Phase.STARTING
    assert not world.holds(C.STALLED)


def test_pool_without_nodes_makes_jobs_wait() -> None:
    world = World(pool=make_pool({}))
    world.settle()
    assert (world.status.phase, world.reason(C.QUOTA_RESERVED)) == (Phase.QUEUED, Reason.POOL_EMPTY)
    assert not world.log


def test_more_than_the_pool_can_ever_have_names_ask_and_limit() -> None:
    """volcano-sh/volcano#1330."""
    message = refused(World(make_job(count=9)), Reason.EXCEEDS_MAX_QUOTA)
    assert message == "spec.devices.count=9: pool pool gives a production job at most 8 devices"
    capped = World(make_job(count=4), make_pool(spec=ResourcePoolSpec(quota=3)))
    assert "at most 3 devices" in refused(capped, Reason.EXCEEDS_MAX_QUOTA)
    debug = World(make_job(count=2, priority=Priority.DEBUG))
    assert "at most 1 devices (debug share 20 %)" in refused(debug, Reason.EXCEEDS_MAX_QUOTA)


def test_full_pool_is_no_reason_to_refuse() -> None:
    world = World(make_job(count=8), make_pool(lost=("b",)))
    world.settle()
    assert (world.status.phase, world.reason(C.QUOTA_RESERVED)) == (Phase.QUEUED, Reason.WAITING_FOR_QUOTA)


def test_pool_under_deletion_takes_nobody_new() -> None:
    assert "is being deleted" in refused(World(pool=make_pool(deleting=True)), Reason.POOL_NOT_FOUND)


@pytest.mark.parametrize(
    ("reason", "wake"),
    [(None, limits.CLAIM_RETRY), (Reason.CHECKPOINT_PATH_IN_USE, None)],
    ids=["no claim, of which no watch tells", "path in use"],
)
def test_storage_problem_is_refused_before_anything_is_reserved(reason: Reason | None, wake: float | None) -> None:
    world = World()
    world.facts |= {"storage_problem": "claim checkpoints is missing", "storage_reason": reason}
    assert refused(world, reason or Reason.STORAGE_NOT_FOUND, wake) == "claim checkpoints is missing"
    world.facts["storage_problem"] = None
    world.settle()
    assert world.status.phase is Phase.STARTING


def test_wrong_device_type() -> None:
    assert "pool pool has cpu devices" in refused(World(make_job_of_gpus()), Reason.INVALID_SPEC)


def make_job_of_gpus() -> Any:
    job = make_job()
    return job.model_copy(update={"spec": job.spec.replace(devices=job.spec.devices.replace(type="gpu"))})


def test_release_namespace() -> None:
    found = refusal(make_job(), "team")
    assert found is not None
    assert found[0] is Reason.RELEASE_NAMESPACE


@pytest.mark.parametrize(("name", "legal"), [("a" * 45, True), ("a" * 46, False), ("x" * 78, False)])
def test_names_are_bounded_by_the_longest_child(name: str, legal: bool) -> None:
    """kubernetes-sigs/jobset#408, kubeflow/trainer#1101, ray-project/kuberay#3980."""
    job = make_job(name)
    found = refusal(job, None)
    assert (found is None) is legal
    assert (len(longest_child_name(job)) <= 63) is legal
    if not legal:
        assert "longest allowed is 45" in refused(World(job), Reason.NAME_TOO_LONG)


@pytest.mark.parametrize(
    "command",
    [
        ("torchrun", "--nproc_per_node=2", "train.py"),
        ("/usr/bin/torchrun", "train.py"),
        ("python", "-m", "torch.distributed.run", "train.py"),
        ("python3", "-u", "-m", "torch.distributed.launch", "train.py"),
        ("accelerate", "launch", "train.py"),
        ("bash", "-c", "cd /src && exec torchrun --nnodes=2 train.py"),
        ("sh", "-ec", "PYTHONPATH=. python -m torch.distributed.run train.py"),
        ("env", "A=1", "deepspeed", "train.py"),
    ],
)
def test_nested_launchers_are_refused_with_the_fix(command: tuple[str, ...]) -> None:
    message = refused(World(make_job(command=command)), Reason.INVALID_SPEC)
    assert "would start a second process group" in message
    if "train.py" in command:
        assert "nearest legal value: ['train.py']" in message


@pytest.mark.parametrize("command", [("--nnodes=2", "train.py"), ("--standalone", "--nproc-per-node", "2", "train.py")])
def test_options_of_torchrun_are_refused_with_the_fix(command: tuple[str, ...]) -> None:
    message = refused(World(make_job(command=command)), Reason.INVALID_SPEC)
    assert f"spec.command[0]={command[0]!r}: is an option of torchrun" in message
    assert "nearest legal value: ['train.py']" in message


def test_label_of_the_operator_is_refused_with_its_value() -> None:
    found = refusal(make_job(template={"labels": {"kuangchao.io/job": "x"}}), None)
    assert found is not None
    assert "spec.template.labels.kuangchao.io/job='x': is a name of the operator's own" in found[1]


@pytest.mark.parametrize(
    "command",
    [
        ("train.py", "--launcher", "torchrun"),
        ("-m", "my.trainer"),
        ("my_torchrun.py",),
        ("pythonic/train", "-m", "x"),
    ],
)
def test_harmless_commands_pass(command: tuple[str, ...]) -> None:
    assert nested_launcher(command) is None
    assert refusal(make_job(command=command), None) is None


@pytest.mark.parametrize(
    ("command", "nearest"),
    [
        (("python", "train.py", "-m", "x"), "nearest legal value: ['train.py', '-m', 'x']"),
        (("/usr/bin/python3.11", "-u", "-m", "my.trainer"), "nearest legal value: ['-m', 'my.trainer']"),
        (("env", "A=1", "python", "train.py"), "nearest legal value: ['train.py']"),
        (("bash", "-c", "echo torchrun is not used; python train.py"), "is neither"),
    ],
)
def test_what_python_could_not_run_is_refused(command: tuple[str, ...], nearest: str) -> None:
    """A rank is `python -u` and the command, as torchrun has it: the program would be looked for as a script."""
    assert nested_launcher(command) is None
    found = refusal(make_job(command=command), None)
    assert found is not None
    assert found[1].endswith(nearest)


def test_uneven_pods_are_refused_with_the_nearest_count() -> None:
    """kubeflow/trainer#1790, kubeflow/pytorch-operator#331."""
    found = refusal(make_job(count=5, per_pod=2), None)
    assert found is not None
    assert "spec.devices.count=5: must be a multiple of perPod 2; nearest legal value: 4" in found[1]


def test_task_and_command_exclude_each_other() -> None:
    found = refusal(make_job(task="m:f", command=("x.py",)), None)
    assert found is not None
    assert "exactly one of" in found[1]


def test_uid_is_part_of_every_name() -> None:
    assert longest_child_name(make_job(uid=UID)) != longest_child_name(make_job(uid="other"))
