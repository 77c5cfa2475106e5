"""The API server itself refuses every value outside the schema, on create and on update: no webhook, no operator."""

import copy
from typing import Any

import pytest

from kuangchao_contracts import api
from kuangchao_contracts.api.meta import CustomObject
from kuangchao_operator.api.crdgen import KINDS, kind_of, root_schema
from tests.api.bounds import Overstep, overstepped, oversteps
from tests.api.manifests import FULL
from tests.api.server import ApiServer, RefusedError

SCHEMAS = {kind_of(model): root_schema(model) for model in KINDS}
MODELS: dict[str, type[CustomObject]] = {kind_of(model): model for model in KINDS}


def _cases() -> list[Any]:
    return [
        pytest.param(manifest, step, id=f"{name}-{step.label}")
        for name, manifest in FULL.items()
        for step in oversteps(SCHEMAS[manifest["kind"]]["properties"]["spec"], manifest["spec"])
    ]


def _leaves(schema: dict[str, Any], sample: Any, path: str = "spec") -> set[str]:
    """Fields of the schema that the sample does not set."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return set()
    missing = {f"{path}.{name}" for name in schema.get("properties", {}) if name not in sample}
    for name, child in schema.get("properties", {}).items():
        if name in sample:
            missing |= _leaves(child, sample[name], f"{path}.{name}")
    if "items" in schema:
        missing |= _leaves(schema["items"], sample[0], f"{path}[]")
    return missing


@pytest.fixture(scope="module")
def stored(api_server: ApiServer) -> None:
    """The full objects as they lie in the API server."""
    for manifest in FULL.values():
        api_server.create(manifest)


def test_samples_set_every_field_of_every_kind() -> None:
    unset: dict[str, set[str]] = {}
    for manifest in FULL.values():
        found = _leaves(SCHEMAS[manifest["kind"]]["properties"]["spec"], manifest["spec"])
        unset[manifest["kind"]] = unset.get(manifest["kind"], found) & found
    assert {kind: fields for kind, fields in unset.items() if fields} == {}


@pytest.mark.parametrize("name", FULL)
def test_full_object_is_accepted_and_nothing_is_pruned(api_server: ApiServer, name: str) -> None:
    made = api_server.create(FULL[name], dry=True)
    assert made["spec"] == FULL[name]["spec"]


@pytest.mark.parametrize("name", FULL)
def test_models_read_what_the_server_stores_and_the_server_what_models_write(api_server: ApiServer, name: str) -> None:
    manifest = FULL[name]
    made = api_server.create(manifest, dry=True)
    value = MODELS[manifest["kind"]].model_validate(made)
    written = value.wire()
    again = api_server.create({**written, "metadata": {"name": manifest["metadata"]["name"]}}, dry=True)
    assert MODELS[manifest["kind"]].model_validate(again).wire()["spec"] == written["spec"]


@pytest.mark.parametrize(("manifest", "step"), _cases())
def test_overstepped_bound_is_refused_on_create(
    api_server: ApiServer, manifest: dict[str, Any], step: Overstep
) -> None:
    with pytest.raises(RefusedError, match=step.field):
        api_server.create(overstepped(manifest, step), dry=True)


@pytest.mark.parametrize(("manifest", "step"), _cases())
def test_overstepped_bound_is_refused_on_update(
    api_server: ApiServer, stored: None, manifest: dict[str, Any], step: Overstep
) -> None:
    changed = overstepped(manifest, step)
    current = api_server.get(manifest["kind"], manifest["metadata"]["name"])
    with pytest.raises(RefusedError, match=step.field):
        api_server.replace({**current, "spec": changed["spec"]}, dry=True)


def test_optional_blocks_may_all_be_left_out(api_server: ApiServer) -> None:
    """kubernetes-sigs/jobset#394."""
    spec = {"pool": "cpu", "task": "tasks:train", "devices": {"count": 1}}
    job = {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"generateName": "demo-"},
        "spec": spec,
    }
    made = api_server.create(copy.deepcopy(job), dry=True)
    value = api.TrainingJob.model_validate(made)
    assert value.metadata.name.startswith("demo-")
    assert value.spec == api.TrainingJob.model_validate(job).spec, "server and models must have the same defaults"


def test_pool_defaults_are_the_same_in_server_and_models(api_server: ApiServer) -> None:
    pool = {"apiVersion": "kuangchao.io/v1alpha1", "kind": "ResourcePool", "metadata": {"name": "p"}, "spec": {}}
    made = api_server.create(pool, dry=True)
    assert api.ResourcePool.model_validate(made).spec == api.ResourcePool.model_validate(pool).spec
