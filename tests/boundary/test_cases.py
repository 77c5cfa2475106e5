"""docs/cases.md names tests that exist, and a test that names a report is listed there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "cases.md").read_text()
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")


def _tests() -> Iterator[tuple[str, str]]:
    """Name below tests/ and docstring of every test."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                yield f"{path.relative_to(TESTS)}::{node.name}", ast.get_docstring(node) or ""


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py::\w+)`", PAGE))
    assert len(named) > 50
    assert named - {name for name, _ in _tests()} == set()


def test_every_report_that_a_test_names_is_listed() -> None:
    named = {report for _, text in _tests() for report in REPORT.findall(text)}
    assert len(named) > 30
    assert named - set(REPORT.findall(PAGE)) == set()
