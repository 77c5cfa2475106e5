"""docs/threats.md: every threat has a defence that exists and tests that exist, and tests of a threat are listed."""

import ast
import re

from tests.boundary.test_cases import TESTS, _tests

ROOT = TESTS.parent
ROW = re.compile(r"^\| T(\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = {int(number): cells for number, *cells in ROW.findall((ROOT / "docs" / "threats.md").read_text())}
CODE = re.compile(r"`([\w/.-]+\.(?:py|yaml))`")
TEST = re.compile(r"`([\w/]+\.py::\w+)`")
NUMBERED = re.compile(r"^T(\d+)[:.]")


def test_every_threat_has_a_row() -> None:
    assert list(ROWS) == list(range(1, 26))


def test_every_defence_is_code_that_exists() -> None:
    for number, (_, defence, _) in ROWS.items():
        files = CODE.findall(defence)
        assert files, f"T{number} names no code"
        assert [name for name in files if not (ROOT / name).is_file()] == [], f"T{number}"


def test_every_proof_is_a_test_that_exists() -> None:
    known = {name for name, _ in _tests()}
    for number, (_, _, proof) in ROWS.items():
        tests = TEST.findall(proof)
        assert len(tests) >= 2, f"T{number} has no proof of its own"
        assert [name for name in tests if name not in known] == [], f"T{number}"


def test_a_file_that_is_about_a_threat_is_listed_with_it() -> None:
    about = {}
    for path in TESTS.rglob("test_*.py"):
        found = NUMBERED.match(ast.get_docstring(ast.parse(path.read_text())) or "")
        if found:
            about[str(path.relative_to(TESTS))] = int(found[1])
    assert {13, 14, 23, 24} <= set(about.values())
    for name, number in about.items():
        assert f"`{name}::" in ROWS[number][2], f"{name} says T{number}"


def test_the_page_is_found_from_the_design() -> None:
    assert "docs/threats.md" in (ROOT / "docs" / "design.md").read_text()
