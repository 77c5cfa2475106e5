"""docs/manifest.md names every field of a job's spec with its default, and none that there is not."""

import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from kuangchao_contracts.api.podtemplate import PodTemplate
from kuangchao_contracts.api.trainingjob import TrainingJobSpec

PAGE = Path(__file__).resolve().parents[3] / "docs" / "manifest.md"
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line][2:]
ALONE = {"model", "plugins", "channels", "template"}
"""Members that are told in one row."""


def models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models(part)]


def leaves(kind: type[BaseModel], above: str = "") -> dict[str, Any]:
    """Fields that hold no others, by path, with their defaults."""
    found = dict[str, Any]()
    for name, field in kind.model_fields.items():
        path = f"{above}{field.alias or name}"
        inner = [] if path in ALONE else models(field.annotation)
        found |= leaves(inner[0], f"{path}.") if inner else {path: field.get_default()}
    return found


def told() -> dict[str, str]:
    """The default of each field that the page names. In a row the first name says where the others belong."""
    found = dict[str, str]()
    for names, default, _ in ROWS:
        first, *others = re.findall(r"`([\w.]+)`", names)
        above = first.rpartition(".")[0]
        while above and any(f"{above}.{name}" not in FIELDS for name in others):
            above = above.rpartition(".")[0]
        paths = [first, *(f"{above}.{name}" if above and name not in FIELDS else name for name in others)]
        found |= dict.fromkeys(paths, default)
    return found


FIELDS = leaves(TrainingJobSpec)


def test_every_field_is_there_and_none_is_made_up() -> None:
    assert told().keys() == FIELDS.keys()


def test_defaults_are_those_of_the_schema() -> None:
    """Words and numbers; what is empty or absent is told in words of the page's own."""
    page = told()
    plain = {path: default for path, default in FIELDS.items() if isinstance(default, str | int) and default != ""}
    stated = {path: re.findall(r"[\w-]+", page[path].replace("needed", "")) for path in plain}
    assert [path for path, default in plain.items() if str(default).lower() not in map(str.lower, stated[path])] == []


def test_the_pods_members_are_named() -> None:
    row = next(row for row in ROWS if row[0] == "`template`")
    members = [field.alias or name for name, field in PodTemplate.model_fields.items()]
    assert set(re.findall(r"`(\w+)`", row[2])) == set(members)
