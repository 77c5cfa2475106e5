"""No number is taken from a file that the API server could not hold: schemas of kinds say int64, and so do models."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kuangchao_contracts.api import ResourceDescriptorObject, ResourcePool, TrainingJob
from kuangchao_contracts.base import INT64


def models(annotation: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """All models in an annotation, each once."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation, seen)
    for part in get_args(annotation):
        yield from models(part, seen)


def bounds(field: FieldInfo) -> Iterator[list[Any]]:
    """What is said of each number in a field."""
    nested = (part.__metadata__ for part in get_args(field.annotation) if hasattr(part, "__metadata__"))
    for said in (field.metadata, *nested):
        flat = [one for part in said for one in (part.metadata if isinstance(part, FieldInfo) else [part])]
        if any(isinstance(one, Ge) for one in flat):
            yield flat


@pytest.mark.parametrize("kind", [TrainingJob, ResourcePool, ResourceDescriptorObject])
def test_every_number_in_a_spec_has_an_upper_bound(kind: type[BaseModel]) -> None:
    found = 0
    for model in models(kind.model_fields["spec"].annotation, set()):
        for name, field in model.model_fields.items():
            for said in bounds(field):
                found += 1
                assert INT64 in said or any(isinstance(one, Le) for one in said), f"{model.__name__}.{name}"
    assert found > (2 if kind is ResourcePool else 5)
