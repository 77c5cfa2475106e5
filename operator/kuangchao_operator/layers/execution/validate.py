"""What neither the schema nor CEL can refuse: rules over a job's name, namespace, command and pod overrides. Pure."""

import re
import shlex
from typing import Final

from kuangchao_contracts import names
from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.reasons import Reason
from kuangchao_operator.layers.execution import overrides

LAUNCHERS: Final = frozenset(
    {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "dlrover-run", "srun"}
)
MODULES: Final = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
)
SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})
MAX_LABEL: Final = 63
_PYTHON = re.compile(r"python[\d.]*|env")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_SEPARATORS = re.compile(r"[;&|]+|\n")


def refusal(job: TrainingJob, release_namespace: str | None) -> tuple[Reason, str] | None:
    """Why a job cannot be run as it is written, or None."""
    if release_namespace is not None and job.metadata.namespace == release_namespace:
        return Reason.RELEASE_NAMESPACE, (
            f"metadata.namespace={release_namespace!r}: is the operator's own namespace; apply the job to another one"
        )
    longest = longest_child_name(job)
    if len(longest) > MAX_LABEL or len(job.metadata.name) > names.MAX_JOB_NAME:
        return Reason.NAME_TOO_LONG, (
            f"metadata.name={job.metadata.name!r}: has {len(job.metadata.name)} characters, the"
            f" longest allowed is {names.MAX_JOB_NAME}, since pods are named {longest!r}"
        )
    try:
        _check(job)
    except InvalidInputError as error:
        return Reason.INVALID_SPEC, str(error)
    return None


def longest_child_name(job: TrainingJob) -> str:
    """The longest name that any child of the job could ever get."""
    return names.pod_name(job.metadata.name, job.metadata.uid, names.MAX_INCARNATION, names.MAX_PODS - 1)


def _check(job: TrainingJob) -> None:
    spec = job.spec
    if (spec.task is None) == (spec.command is None):
        raise InvalidInputError("spec.task", spec.task, "exactly one of spec.task and spec.command must be set")
    count, per_pod = spec.devices.count, spec.devices.per_pod
    if count % per_pod:
        nearest = max(per_pod, round(count / per_pod) * per_pod)
        raise InvalidInputError("spec.devices.count", count, f"must be a multiple of perPod {per_pod}", nearest)
    policy = spec.checkpoint
    if (policy.every_steps or policy.every_minutes) and policy.storage is None:
        raise InvalidInputError("spec.checkpoint.storage", None, "is needed when everySteps or everyMinutes is set")
    if spec.command is not None:
        _check_command(spec.command)
    _check_template(job)
    overrides.check(spec.pod_overrides)


def _check_template(job: TrainingJob) -> None:
    template = job.spec.template
    for place, env in enumerate(template.env):
        overrides.check_env(env.wire(), f"spec.template.env[{place}]")
    for place, volume in enumerate(template.volumes):
        overrides.check_volume(volume, f"spec.template.volumes[{place}]")
    for place, mount in enumerate(template.volume_mounts):
        overrides.check_mount(mount.mount_path, f"spec.template.volumeMounts[{place}].mountPath")
    for name, value in template.labels.items():
        overrides.check_label(name, value, "spec.template.labels")


def _check_command(command: tuple[str, ...]) -> None:
    if command[0].startswith("--"):
        why = (
            "is an option of torchrun; nodes, processes and rendezvous are set from spec.devices: begin with the script"
        )
        raise InvalidInputError("spec.command[0]", command[0], why, _without_options(command))
    launcher = nested_launcher(command)
    if launcher is not None:
        why = f"{launcher} inside a job would start a second process group; give only what follows it"
        raise InvalidInputError("spec.command", list(command), why, _without_launcher(command))
    program = command[0].rsplit("/", 1)[-1]
    if program in SHELLS or _PYTHON.fullmatch(program):
        why = f"python itself runs what a command begins with, a script or -m, and {program} is neither"
        nearest = _without_options(command) if program not in SHELLS else None
        raise InvalidInputError("spec.command", list(command), why, nearest)


def nested_launcher(command: tuple[str, ...]) -> str | None:
    """The launcher that a command starts, directly, through python -m or in a shell's -c; None: none."""
    words = [w for w in command if _ASSIGNMENT.fullmatch(w) is None]
    if not words:
        return None
    program = words[0].rsplit("/", 1)[-1]
    if program == "env":
        return nested_launcher(tuple(words[1:]))
    if program in LAUNCHERS:
        return program
    if program in SHELLS:
        return _in_script(" ".join(w for w in words[1:] if not w.startswith("-")))
    if "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        return module if module.startswith(MODULES) else None
    return None


def _in_script(script: str) -> str | None:
    for part in _SEPARATORS.split(script):
        try:
            words = tuple(w for w in shlex.split(part) if w not in ("exec", "time", "nohup"))
        except ValueError:
            words = tuple(part.split())
        found = nested_launcher(words) if words else None
        if found is not None:
            return found
    return None


def _without_options(command: tuple[str, ...]) -> list[str] | None:
    """The command from `-m` or the script on."""
    found = next((place for place, word in enumerate(command) if word == "-m" or word.endswith(".py")), None)
    return None if found is None else list(command[found:])


def _without_launcher(command: tuple[str, ...]) -> list[str] | None:
    script = next((place for place, word in enumerate(command) if word.endswith(".py")), None)
    return list(command[script:]) if script is not None else None
