"""How the closing lines of `make test` become figures."""

from bench import commands

OUTPUT = """2405 passed in 130.11s
unit: 134 s of 4 min
e2e: 1900 s of 30 min
boundary: over budget
"""


def test_each_tier_is_a_figure_with_its_budget_as_target() -> None:
    unit, e2e = commands.tiers(OUTPUT)
    assert (unit.name, unit.value, unit.target, unit.met) == ("tier unit", 134.0, 240.0, True)
    assert (e2e.name, e2e.met) == ("tier e2e", False)
