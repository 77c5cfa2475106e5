"""The rules between fields of a TrainingJob for files, where no API server evaluates the schema's CEL rules.

Each check here has its CEL twin in the contracts; checks of single fields stay in the models alone.
"""

import re
from typing import Any, Final

from kuangchao_contracts.api import TrainingJob
from kuangchao_contracts.api.trainingjob import Devices, TrainingJobSpec
from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.names import MAX_JOB_NAME
from kuangchao_contracts.plan import Parallelism
from kuangchao_operator.cli.yamltext import Document, Path
from kuangchao_operator.layers.execution.validate import refusal

WHOLE_PERCENT: Final = 100
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)


class RefusedManifestError(InvalidInputError):
    """What the operator itself would refuse, in its words, with the place in the file."""

    code = "InvalidInput"

    def __init__(self, document: Document, message: str) -> None:
        field = message.partition("=")[0]
        place = document.where(tuple(field.split(".")))
        super().__init__(place, None, message)
        self.args = (place.removesuffix(field) + message,)


def check_job(document: Document, job: TrainingJob) -> None:
    """Raise InvalidInputError for the first rule that a job breaks."""
    _check_name(document, job)
    _check_program(document, job)
    _check_devices(document, job.spec.devices)
    policy = job.spec.checkpoint
    if (policy.every_steps or policy.every_minutes) and policy.storage is None:
        path = document.where(("spec", "checkpoint", "storage"))
        raise InvalidInputError(
            path,
            None,
            "is needed when everySteps or everyMinutes is set",
            "storage: {claimName: <PersistentVolumeClaim>}",
        )
    _check_lists(document, job, ())
    _check_channels(document, job)
    _check_stages(document, job.spec.parallelism)
    refused = refusal(job, None)
    if refused is not None:
        raise RefusedManifestError(document, refused[1])


def _check_lists(document: Document, part: Contract, path: Path) -> None:
    """Entries of a list are told apart by themselves, or by a member, where the schema says so."""
    for name, field in type(part).model_fields.items():
        given, here = getattr(part, name), (*path, field.alias or name)
        if isinstance(given, Contract):
            _check_lists(document, given, here)
        elif isinstance(given, tuple) and isinstance(field.json_schema_extra, dict):
            _check_distinct(document, [_identity(one, field.json_schema_extra) for one in given], here)


def _identity(entry: Any, schema: dict[str, Any]) -> object:
    """What tells an entry from the others; itself where it may stand there again."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        wire = entry.wire()
        return tuple(wire[key] for key in keys)
    return entry if schema.get("x-kubernetes-list-type") == "set" else object()


def _check_distinct(document: Document, entries: list[object], path: Path) -> None:
    for place, entry in enumerate(entries):
        if entry in entries[:place]:
            once = ", ".join(dict.fromkeys(map(_told, entries)))
            raise InvalidInputError(document.where((*path, place)), _told(entry), "stands twice", f"[{once}]")


def _told(entry: object) -> str:
    return "/".join(map(str, entry)) if isinstance(entry, tuple) else str(entry)


def _check_channels(document: Document, job: TrainingJob) -> None:
    shares = [channel.quota_percent for channel in job.spec.channels]
    if sum(shares) > WHOLE_PERCENT:
        path = document.where(("spec", "channels"))
        raise InvalidInputError(path, sum(shares), "is the quotaPercent of all channels together", WHOLE_PERCENT)


def _check_stages(document: Document, wish: Parallelism) -> None:
    if wish.stage_layers is not None and wish.pipeline is None:
        path, stages = document.where(("spec", "parallelism", "stageLayers")), len(wish.stage_layers)
        nearest = f"pipeline: {max(1, stages // (wish.virtual_stages or 1))} beside it"
        raise InvalidInputError(path, list(wish.stage_layers), "needs parallelism.pipeline", nearest)


def _check_name(document: Document, job: TrainingJob) -> None:
    name, path = job.metadata.name, document.where(("metadata", "name"))
    if not name:
        if job.metadata.generate_name:
            return
        raise InvalidInputError(path, name, "is required")
    if len(name) > MAX_JOB_NAME or _NAME.fullmatch(name) is None:
        legal = re.sub(r"[^-a-z0-9]+", "-", name.lower()).lstrip("-0123456789")[:MAX_JOB_NAME].rstrip("-") or "job"
        why = f"must be a DNS label of at most {MAX_JOB_NAME} characters that starts with a letter"
        raise InvalidInputError(path, name, why + ": names of pods are made from it", legal)


def _check_program(document: Document, job: TrainingJob) -> None:
    spec = job.spec
    if spec.task is not None and spec.command is not None:
        path = document.where(("spec", "command"))
        raise InvalidInputError(path, list(spec.command), f"cannot stand beside spec.task={spec.task!r}", "one of both")
    if spec.task is None and (spec.plugins or spec.parallelism.task_rules):
        place, why = _needs_task(spec)
        raise InvalidInputError(document.where(place), None, why, "spec.task in place of spec.command")
    if spec.task is None and spec.command is None:
        raise InvalidInputError(
            document.where(("spec",)),
            None,
            "one of spec.task and spec.command must be set",
            "task: kuangchao_worker.tasks.digits:digits",
        )


def _needs_task(spec: TrainingJobSpec) -> tuple[Path, str]:
    if spec.plugins:
        return ("spec", "plugins"), "needs spec.task: between the parts of a command nothing can be put"
    return ("spec", "parallelism", "taskRules"), "needs spec.task: a command lays out its own processes"


def _check_devices(document: Document, devices: Devices) -> None:
    def where(field: str) -> str:
        return document.where(("spec", "devices", field))

    count, per_pod = devices.count, devices.per_pod
    if count % per_pod:
        nearest = max(per_pod, round(count / per_pod) * per_pod)
        raise InvalidInputError(where("count"), count, f"must be a multiple of devices.perPod {per_pod}", nearest)
    if devices.min is not None and devices.min > count:
        raise InvalidInputError(where("min"), devices.min, f"must not exceed devices.count {count}", count)
    if devices.max is not None and devices.max < count:
        raise InvalidInputError(where("max"), devices.max, f"must not be below devices.count {count}", count)
