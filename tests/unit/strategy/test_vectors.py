"""The planner's answers are those that were stored: a formula or figure that changes them is changed on purpose.

If so: `PYTHONPATH=contracts:operator python tests/unit/strategy/vectors.py --write`, and say why in the commit.
"""

import json

import pytest
from tests.unit.strategy.vectors import STORED, vectors


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    return vectors()


@pytest.mark.parametrize("name", sorted(json.loads(STORED.read_text())))
def test_an_answer_is_the_one_stored(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == json.loads(STORED.read_text())[name]


def test_every_answer_is_stored(answers: dict[str, str]) -> None:
    assert answers.keys() == json.loads(STORED.read_text()).keys()
