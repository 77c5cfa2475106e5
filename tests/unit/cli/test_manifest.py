"""Bad files are refused with file, line, field, value and the nearest legal value; good ones are read as they are."""

from pathlib import Path

import pytest
import yaml

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_operator.cli.manifest import read_job, read_resources
from tests.unit.cli.manifests import GOOD, changed

FIELDS = [
    ("spec.devices.count", 0, 1),
    ("spec.devices.count", -1, 1),
    ("spec.devices.count", 1.5, 2),
    ("spec.devices.count", "2", 2),
    ("spec.devices.count", 2**31, 16_384),
    ("spec.devices.perPod", -5, 1),
    ("spec.training.globalBatch", 0, 1),
    ("spec.training.seed", -1, 0),
    ("spec.training.precision", "bf61", "bf16"),
    ("spec.training.optimizer", "AdamW", "adamw"),
    ("spec.priority", "prod", "production"),
    ("spec.suspend", "yes please", "true or false"),
    ("spec.checkpoint.keep", 1, 2),
    ("spec.model.kind", "measure", "measured"),
    ("spec.model.parameters", 0, 1),
    ("spec.fault.onHang", "Restrat", "Restart"),
    ("spec.fault.maxRestarts", -1, 0),
    ("spec.model.parameters", 10**30, 2**63 - 1),
    ("spec.command", "train.py --lr 1 'two words'", "[train.py, --lr, '1', two words]"),
    ("spec.task", "train", "train:function"),
    ("spec.task", "pack/train.py:task", "pack.train:task"),
    ("spec.task", "./pack/train.py", "pack.train:function"),
    ("spec.task", "pack.train.task", "pack.train:task"),
    ("spec.task", "two words", "module:function"),
    ("spec.parallelism.tensor", True, "2, or taskRules: [tensor]"),
    ("spec.parallelism.data", True, None),
    ("spec.parallelism.taskRules", "tensor", "[tensor]"),
    ("spec.parallelism.taskRules", "tensr, pipeline", "[tensor, pipeline]"),
    ("spec.parallelism.stageLayers", 14, "[14]"),
    ("metadata.name", "Digits_Run", "digits-run"),
    ("metadata.name", "9lives", "lives"),
    ("metadata.name", "x" * 46, "x" * 45),
    ("apiVersion", "kuangchao.io/v1", "kuangchao.io/v1alpha1"),
    ("kind", "TrainJob", "TrainingJob"),
]
UNKNOWN = [
    ("spec.device", {"count": 2}, "devices"),
    ("spec.devices.per_pod", 1, "perPod"),
    ("spec.devices.Count", 2, "count"),
    ("spec.training.globalbatch", 64, "globalBatch"),
    ("spec.model.params", 5, "parameters"),
    ("spec.model.layers", 28, "kind: transformer"),
    ("spec.template.resource", {}, "resources"),
    ("spec.checkpoint.everyStep", 5, "everySteps"),
]


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return str(path)


def refused(tmp_path: Path, text: str) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        read_job(write(tmp_path, text))
    return caught.value


def line_of(text: str, field: str) -> int:
    """Line of a field by its last name: top-level names come first in the file, nested ones last."""
    *parents, key = field.split(".")
    found = [n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(f"{key}:")]
    return found[-1] if parents else found[0]


@pytest.mark.parametrize(("field", "value", "nearest"), FIELDS)
def test_illegal_value_names_line_field_value_and_nearest(
    tmp_path: Path, field: str, value: object, nearest: object
) -> None:
    text = changed(field, value)
    error = refused(tmp_path, text)
    assert error.field == f"{tmp_path}/job.yaml:{line_of(text, field)}: {field}"
    assert error.value == value
    assert error.nearest == nearest
    assert repr(value) in str(error)


@pytest.mark.parametrize(("field", "value", "nearest"), UNKNOWN)
def test_unknown_field_suggests_the_nearest(tmp_path: Path, field: str, value: object, nearest: str) -> None:
    error = refused(tmp_path, changed(field, value))
    assert error.field.endswith(f": {field}")
    assert error.nearest == nearest
    assert "unknown field" in error.why


def test_unknown_field_is_named_before_what_its_absence_breaks(tmp_path: Path) -> None:
    text = changed("spec.devices", ...).rstrip() + "\n  device: {count: 2}\n"
    assert refused(tmp_path, text).nearest == "devices"


def test_unknown_field_in_a_list_of_objects(tmp_path: Path) -> None:
    error = refused(tmp_path, changed("spec.template.env", [{"name": "A", "value": "1"}, {"name": "B", "valeu": "2"}]))
    assert error.field.endswith("spec.template.env[1].valeu")
    assert error.nearest == "value"


RULES = [
    ("spec.devices", {"count": 3, "perPod": 2}, "spec.devices.count", 4),
    ("spec.devices", {"count": 1, "perPod": 4}, "spec.devices.count", 4),
    ("spec.devices", {"count": 2, "min": 3}, "spec.devices.min", 2),
    ("spec.devices", {"count": 2, "max": 1}, "spec.devices.max", 2),
    ("spec.command", ["train.py"], "spec.command", "one of both"),
    ("spec.task", ..., "spec", "task: kuangchao_worker.tasks.digits:digits"),
    ("spec.checkpoint", {"everySteps": 5}, "spec.checkpoint.storage", "storage: {claimName: <PersistentVolumeClaim>}"),
    ("spec.parallelism", {"stageLayers": [3, 1]}, "spec.parallelism.stageLayers", "pipeline: 2 beside it"),
    ("metadata.name", ..., "metadata.name", None),
]


@pytest.mark.parametrize(("path", "value", "field", "nearest"), RULES)
def test_rules_between_fields(tmp_path: Path, path: str, value: object, field: str, nearest: object) -> None:
    error = refused(tmp_path, changed(path, value))
    assert error.field.endswith(f": {field}")
    assert error.nearest == nearest


def test_what_the_operator_would_refuse_is_refused_here(tmp_path: Path) -> None:
    text = changed("spec.task", ...).rstrip() + "\n  command: [torchrun, --nproc-per-node=2, train.py]\n"
    error = refused(tmp_path, text)
    assert str(error).startswith(f"{tmp_path}/job.yaml:{line_of(text, 'spec.command')}: spec.command=['torchrun'")
    assert "['train.py']" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [1, 2\nb: 3\n", 2, "expected"),
        ("a: b: c\n", 1, "mapping values"),
        ("spec:\n\tpool: cpu\n", 2, "cannot start any token"),
        ("a: 1\nb: 2\na: 3\n", 3, "given twice"),
        ("&x a: [*x]\n", 1, ""),
        ("a: &a [*a]\n", 1, "contains itself"),
        ("x: !!python/object/apply:os.system ['true']\n", 1, "could not determine a constructor"),
        ("- 1\n- 2\n", 1, "not a Kubernetes object"),
    ],
)
def test_broken_yaml_names_the_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    error = refused(tmp_path, text)
    assert f"job.yaml:{line}: " in error.field
    assert words in error.why


def test_alias_bomb_is_refused(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "too many fields" in refused(tmp_path, "a0: &a0 [1]\n" + "\n".join(levels)).why


@pytest.mark.parametrize(
    "text", ["", "---\n---\n", changed("spec.pool", "cpu") + "---\n" + changed("spec.pool", "cpu")]
)
def test_exactly_one_document(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, text)
    assert "exactly one TrainingJob" in error.why
    assert error.nearest == "1 document"


BETWEEN = [
    ("spec.parallelism", {"taskRules": ["tensor", "context", "tensor"]}, "spec.parallelism.taskRules[2]", "tensor"),
    ("spec.channels", [{"name": "a", "quotaPercent": 5}] * 2, "spec.channels[1]", "a"),
    ("spec.channels", [{"name": n, "quotaPercent": 60} for n in "ab"], "spec.channels", 120),
    ("spec.template", {"env": [{"name": "A", "value": v} for v in "12"]}, "spec.template.env[1]", "A"),
]


@pytest.mark.parametrize(("path", "value", "field", "shown"), BETWEEN)
def test_entries_of_a_list_are_judged_as_the_api_server_does(
    tmp_path: Path, path: str, value: object, field: str, shown: object
) -> None:
    error = refused(tmp_path, changed(path, value))
    assert (error.field.rpartition(" ")[2], error.value) == (field, shown)


@pytest.mark.parametrize("member", [{"plugins": [{"name": "topk"}]}, {"parallelism": {"taskRules": ["tensor"]}}])
def test_what_needs_a_task_does_not_stand_beside_a_command(tmp_path: Path, member: dict[str, object]) -> None:
    job = yaml.safe_load(changed("spec.task", ...))
    job["spec"] |= {"command": ["train.py"], **member}
    assert "needs spec.task" in refused(tmp_path, yaml.safe_dump(job)).why


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks(tmp_path: Path, value: float) -> None:
    assert "JSON" in refused(tmp_path, changed("spec.training.steps", value)).why


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        read_job(str(tmp_path / "nothing.yaml"))
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        read_job(str(tmp_path / "job.yaml"))


def test_long_values_are_cut(tmp_path: Path) -> None:
    assert len(str(refused(tmp_path, changed("spec.priority", "x" * 100_000)))) < 1_000


def test_good_job_is_read_as_it_is(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, changed("spec.pool", "cpu")))
    assert job.metadata.name == GOOD["metadata"]["name"]
    assert job.spec.wire()["devices"] == GOOD["spec"]["devices"]


def test_times_stay_text(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, changed("metadata.creationTimestamp", "2026-01-01T00:00:00Z").replace("'", "")))
    assert job.metadata.creation_timestamp is not None


@pytest.mark.parametrize("example", sorted(Path("examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_good(example: Path) -> None:
    if example.name == "pool.yaml":
        assert read_resources(str(example))[1][0].metadata.name == "cpu"
    else:
        assert read_job(str(example)).spec.pool == "cpu"
