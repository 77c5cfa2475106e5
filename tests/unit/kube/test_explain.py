"""`kubectl explain` says something of every field that people write."""

from collections.abc import Iterator

import pytest

from kuangchao_contracts.api import ResourcePool, TrainingJob
from kuangchao_contracts.api.meta import CustomObject
from kuangchao_operator.api.crdgen import root_schema
from kuangchao_operator.api.fielddocs import describe
from kuangchao_operator.api.structural import Schema


def fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every field below, with its path."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


@pytest.mark.parametrize("model", [TrainingJob, ResourcePool])
def test_every_field_of_a_spec_has_a_description_of_one_sentence_or_two(model: type[CustomObject]) -> None:
    found = dict(fields(root_schema(model)["properties"]["spec"], "spec"))
    assert len(found) > 8
    assert [path for path, child in found.items() if not child.get("description", "").strip()] == []
    assert [path for path, child in found.items() if len(child["description"]) > 400] == []


def test_a_text_for_a_field_that_is_gone_is_an_error() -> None:
    with pytest.raises(KeyError, match="gone"):
        describe(root_schema(ResourcePool)["properties"]["spec"], {"health.gone": "It was here."})
